"""A metadata store that the operator replaces by an older copy: its epochs are below those in the logs."""

from odradek.simulation.tests.sole_client import SoleClient

ONE_COORDINATOR = {"transaction_state_log_num_partitions": "1"}


def test_the_epochs_of_a_log_are_kept():
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    backup = client.leave_store_behind()
    assert client.epochs() == [3]
    client.produce(b"b")
    client.restart_with_store(backup)
    assert client.epochs()[0] > 3
    assert client.log().leader_epochs.entries[:2] == [(0, 0), (3, 1)]
    assert client.end_of_epoch(3) == (3, 2)
    client.produce(b"c")
    assert client.end_of_epoch(3) == (3, 2)
    assert client.world.failures == []


def test_an_epoch_of_which_no_log_has_a_record_does_not_come_back():
    """Consumers ignore metadata whose epoch is older than the last one that they received."""
    client = SoleClient()
    for name in ("t", "idle"):
        client.create_topic(name)
        client.produce(b"a", topic=name)
    backup = client.leave_store_behind()
    client.produce(b"b")
    client.restart_with_store(backup)
    assert client.epochs("idle")[0] > 3


def test_the_evidence_may_be_the_broker_epoch_of_the_last_stop():
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    backup = client.leave_store_behind()
    client.restart_with_store(backup)
    assert client.epochs()[0] > 3


def test_a_store_that_is_up_to_date_keeps_its_epochs():
    client = SoleClient(**ONE_COORDINATOR)
    client.create_topic()
    client.restart_after_kill(times=3)
    client.commit_transaction(b"1")
    client.wait(5)
    client.stop()
    client.start()
    assert client.epochs() == [3]
    assert client.epochs("__transaction_state") == [0]


def test_a_coordinator_is_not_fenced_by_markers_of_later_epochs():
    client = SoleClient(**ONE_COORDINATOR)
    client.create_topic()
    client.commit_transaction(b"1")
    backup = client.leave_store_behind()
    assert client.epochs("__transaction_state") == [3]
    client.commit_transaction(b"2")
    client.restart_with_store(backup)
    client.commit_transaction(b"3")
    client.wait(5)
    assert client.log().last_stable_offset == client.log().log_end_offset
    client.commit_transaction(b"4")
    assert client.world.failures == []


def test_a_start_that_fails_leaves_the_epochs_of_the_logs_in_place():
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    backup = client.leave_store_behind()
    client.produce(b"b")
    client.wait(5)
    client.stop()
    failures: list[str] = []
    client.world.broker.on_start_failure = failures.append
    for passes in range(20):
        client.world.metadata.restore(backup)
        client.world.metadata.fail(passes, 1, after_commit=False)
        client.world.broker.start()
        client.world.run(lambda: client.world.broker.is_up or not client.world.broker.is_alive, 60)
        if client.world.broker.is_up:
            break
    assert len(failures) > 2
    assert client.epochs()[0] > 3
    assert client.end_of_epoch(3) == (3, 2)
    assert client.world.failures == []
