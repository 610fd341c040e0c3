from contextlib import suppress

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_topics import CreateTopicsRequest
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.registration import StartError, prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Endpoint, offline_replicas
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.metadata.updates import LocalPublisher
from odradek.replication.tests.support import Cluster, Step, SteppedExecutor, broker, log_keys


def controller(server, broker_id):
    return Controller(server.connect(), LocalPublisher(ClusterMetadata()), broker_id, lambda: 5, lambda: 0)


def start(server, broker_id, **options):
    it = controller(server, broker_id)
    run_now(prepare_store(it.store, "a-cluster"))
    run_now(it.start(options.pop("registration", broker(broker_id)), **options))
    return it


def test_a_lone_broker_registers_and_becomes_the_controller():
    cluster = Cluster()
    assert cluster.cluster_id == cluster.image.cluster_id == "a-cluster"
    assert cluster.controller.is_active
    assert (cluster.image.controller_id, cluster.image.controller_epoch) == (1, 1)
    registered = cluster.image.brokers[1]
    assert registered.endpoints == broker(1).endpoints
    assert registered.epoch == run_now(cluster.store.exists("/brokers/ids/1")).created_id
    assert run_now(cluster.store.get("/controller")).data == (
        b'{"version":2,"brokerid":1,"timestamp":"1000","kraftControllerEpoch":-1}'
    )
    assert run_now(cluster.store.get("/controller_epoch")).data == b"1"


def test_the_cluster_id_stays():
    server = MemoryMetadataServer()
    assert run_now(prepare_store(server.connect(), "first")) == "first"
    assert run_now(prepare_store(server.connect(), "first")) == "first"
    assert run_now(prepare_store(server.connect(), "")) == "first"
    with pytest.raises(StartError, match="belongs to cluster second"):
        run_now(prepare_store(server.connect(), "second"))


def test_a_second_broker_does_not_become_controller_but_follows_when_the_first_goes():
    server = MemoryMetadataServer()
    first, second = start(server, 1), start(server, 2)
    assert (first.is_active, second.is_active) == (True, False)
    assert second.image.controller_id == 1
    assert sorted(second.image.brokers) == [1, 2]
    run_now(first.close())
    assert (first.is_active, second.is_active, second.epoch) == (False, True, 2)
    assert sorted(second.image.brokers) == [2]
    third = start(server, 3)
    assert not third.is_active
    assert sorted(second.image.brokers) == sorted(third.image.brokers) == [2, 3]


def test_a_broker_id_is_used_once():
    server = MemoryMetadataServer()
    start(server, 1)
    with pytest.raises(StartError, match="broker id 1 is in use"):
        start(server, 1, registration=broker(1, port=1234))


def test_an_address_is_used_once():
    server = MemoryMetadataServer()
    start(server, 1)
    with pytest.raises(StartError, match="already advertises host:9001"):
        start(server, 2, registration=broker(2, port=9001))


def test_a_deposed_controller_writes_nothing():
    cluster = Cluster()
    run_now(cluster.store.set("/controller_epoch", b"2"))
    [result] = create(cluster, new("t"))
    assert result.error_code == ErrorCode.NOT_CONTROLLER
    assert not cluster.controller.is_active
    assert run_now(cluster.store.get_children("/brokers/topics")) == []
    assert cluster.image.topics == {}


def test_an_expired_session_ends_the_controllers_term():
    cluster = Cluster()
    cluster.server.expire(cluster.store)
    assert not cluster.controller.is_active


def restart(cluster, **options):
    cluster.server.expire(cluster.store)
    return start(cluster.server, 1, **options)


def test_a_clean_restart_keeps_leader_epochs_and_an_unclean_one_begins_new_ones():
    cluster = Cluster()
    create(cluster, new("t", 2))
    clean = restart(cluster)
    assert [(p.leader, p.leader_epoch) for p in clean.image.topics["t"].partitions] == [(1, 0), (1, 0)]
    clean.store.end_session()
    unclean = start(cluster.server, 1, new_leader_epochs=True)
    assert [(p.leader, p.leader_epoch, p.isr) for p in unclean.image.topics["t"].partitions] == [(1, 1, (1,))] * 2
    loaded = ClusterMetadata()
    run_now(load_image(unclean.store, loaded))
    assert loaded.contents() == unclean.image.contents()


def test_a_partition_without_a_live_replica_has_no_leader():
    cluster = Cluster(others=[2, 3])
    [created] = create(cluster, new("t", -1, -1, assignments=[(0, [2, 1]), (1, [2, 3])]))
    assert created.error_code == 0
    cluster.server.expire(cluster.store)
    for other in (2, 3):
        run_now(cluster.server.connect().delete(f"/brokers/ids/{other}"))
    alone = start(cluster.server, 1)
    [shared, lost] = alone.image.topics["t"].partitions
    assert (shared.leader, shared.leader_epoch, shared.isr) == (1, 1, (1,))
    assert (lost.leader, lost.leader_epoch, lost.isr) == (-1, 1, (2, 3))
    assert offline_replicas(shared, alone.image.brokers) == [2]


def test_the_layout_is_kafkas():
    cluster = Cluster()
    create(cluster, new("t", 2, configs={"min.insync.replicas": "1"}))
    store = cluster.store
    state = run_now(store.get("/brokers/topics/t/partitions/1/state")).data
    assert state == b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
    topic = znodes.decode(run_now(store.get("/brokers/topics/t")).data)
    uuid = znodes.uuid_text(cluster.image.topics["t"].topic_id)
    assert topic == {
        "partitions": {"0": [1], "1": [1]},
        "topic_id": uuid,
        "adding_replicas": {},
        "removing_replicas": {},
        "version": 3,
    }
    assert run_now(store.get("/brokers/topics/t/partitions")).data is None
    config = run_now(store.get("/config/topics/t")).data
    assert config == b'{"version":1,"config":{"min.insync.replicas":"1"}}'


def test_nodes_that_kafka_wrote_are_decoded():
    data = (
        b'{"features":{},"listener_security_protocol_map":{"IN":"SSL"},"endpoints":["IN://[::1]:9500"],"rack":"r1",'
        b'"jmx_port":-1,"port":-1,"host":null,"version":5,"timestamp":"1"}'
    )
    decoded = znodes.decode_broker(3, data, 9)
    assert decoded == BrokerMetadata(3, (Endpoint("IN", "SSL", "::1", 9500),), "r1", 9)
    assert znodes.decode_broker(3, znodes.encode_broker(decoded, 1), 9) == decoded
    topic = znodes.decode_topic(
        b'{"partitions":{"0":[0,2,1]},"topic_id":"ZAdgemhXSEeKenw-lHBBSw","adding_replicas":{"0":[0]},'
        b'"removing_replicas":{"0":[1]},"version":3}'
    )
    assert topic.topic_id is not None
    assert znodes.uuid_text(topic.topic_id) == "ZAdgemhXSEeKenw-lHBBSw"
    state = znodes.decode_state(
        b'{"controller_epoch":2,"leader":-1,"version":1,"leader_epoch":1,"isr":[1,2],"leader_recovery_state":1}',
        7, topic, 0,
    )  # fmt: skip
    assert (state.leader, state.partition_epoch, state.leader_recovery_state) == (-1, 7, 1)
    assert (state.adding, state.removing) == ((0,), (1,))
    assert znodes.topic_config_path("al ice") == "/config/topics/al%20ice"
    assert znodes.topic_of_config("al%20ice") == "al ice"
    assert znodes.broker_config_path(None) == "/config/brokers/<default>"


def test_new_leader_epochs_of_many_topics_are_one_change():
    cluster = Cluster()
    create(cluster, *(new(f"t{number}") for number in range(30)))
    before = run_now(cluster.store.exists("/brokers/topics/t0/partitions/0/state")).modified_id
    run_now(cluster.controller.changes.elect_leaders("a test", fenced=1))
    stats = [
        run_now(cluster.store.exists(f"/brokers/topics/t{number}/partitions/0/state")) for number in range(30)
    ]
    assert len({stat.modified_id for stat in stats}) == 1
    assert stats[0].modified_id > before
    assert {cluster.image.topics[name].partitions[0].leader_epoch for name in cluster.image.topics} == {1}


def test_a_partition_whose_only_log_failed_has_no_leader_until_the_next_start():
    cluster = Cluster(others=[2])
    create(cluster, new("t", -1, -1, assignments=[(0, [1]), (1, [2])]))
    create(cluster, new("s", -1, -1, assignments=[(0, [1, 2])]))
    run_now(cluster.controller.take_offline([("t", 0), ("t", 1), ("s", 0), ("gone", 0), ("t", 7)]))
    alone, elsewhere = cluster.image.topics["t"].partitions
    [shared] = cluster.image.topics["s"].partitions
    assert (alone.leader, alone.leader_epoch, alone.isr) == (-1, 1, (1,))
    assert (shared.leader, shared.leader_epoch, shared.isr) == (2, 1, (2,))
    assert (elsewhere.leader, elsewhere.leader_epoch) == (2, 0)
    assert [offline_replicas(p, cluster.image.brokers) for p in (alone, shared, elsewhere)] == [[1], [1], []]
    version = cluster.image.version
    run_now(cluster.controller.take_offline([("t", 0)]))
    assert cluster.image.version == version, "a second call changes nothing"
    again = restart(cluster)
    assert [p.leader for p in again.image.topics["t"].partitions] == [1, 2]
    assert offline_replicas(again.image.topics["t"].partitions[0], again.image.brokers) == []


def test_a_failed_log_is_published_even_if_the_store_failed_with_it():
    cluster = Cluster()
    create(cluster, new("t"))
    cluster.server.expire(cluster.store)
    run_now(cluster.controller.take_offline([("t", 0)]))
    [partition] = cluster.image.topics["t"].partitions
    assert (partition.leader, offline_replicas(partition, cluster.image.brokers)) == (-1, [1])


def test_topics_of_which_the_store_wrote_a_part_are_published_as_stored(monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.context.MAX_OPERATIONS", 1)
    cluster = Cluster()
    create(cluster, new("first"), new("second"))
    transaction, calls = cluster.store.transaction, []

    async def refuse_the_second(operations):
        calls.append(operations)
        if len(calls) == 2:
            raise StoreUnavailableError("database or disk is full")
        return await transaction(operations)

    monkeypatch.setattr(cluster.store, "transaction", refuse_the_second)
    run_now(cluster.controller.take_offline([("first", 0), ("second", 0)]))
    for name in ("first", "second"):
        partition = cluster.image.topics[name].partitions[0]
        assert (partition.leader, partition.leader_epoch, partition.offline) == (-1, 1, (1,))
        state = run_now(cluster.store.exists(f"/brokers/topics/{name}/partitions/0/state"))
        assert partition.partition_epoch == state.version
        assert not cluster.replicas.get(name, 0).is_leader
    # The next change of either topic succeeds.
    run_now(cluster.controller.put_partitions(list(cluster.image.topics.values())))


def test_a_failed_change_of_several_leaves_listeners_with_what_was_written(monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.context.MAX_OPERATIONS", 1)
    cluster = Cluster()
    create(cluster, new("first"), new("second"))
    transaction, calls = cluster.store.transaction, []

    async def refuse_the_second(operations):
        calls.append(operations)
        if len(calls) == 2:
            raise StoreUnavailableError("database or disk is full")
        return await transaction(operations)

    monkeypatch.setattr(cluster.store, "transaction", refuse_the_second)
    with pytest.raises(StoreUnavailableError):
        run_now(cluster.controller.changes.elect_leaders("a test", fenced=1))
    assert [cluster.replicas.get(name, 0).leader_epoch for name in ("first", "second")] == [1, 0]


def stepped(cluster):
    executor = SteppedExecutor()
    cluster.controller.run_on(executor)
    return executor


def stored_image(cluster):
    stored = ClusterMetadata()
    run_now(load_image(cluster.store, stored))
    return stored


@pytest.mark.parametrize("is_recreated", [True, False])
@pytest.mark.parametrize("how", ["add_partitions", "put_topic_config", "take_offline"])
def test_a_change_that_the_store_confirms_late_does_not_bring_a_deleted_topic_back(monkeypatch, how, is_recreated):
    cluster = Cluster()
    create(cluster, new("t"))
    topic = cluster.image.topics["t"]
    transaction = cluster.store.transaction

    async def confirm_late(operations):
        results = await transaction(operations)
        await Step()
        return results

    changes = {
        "add_partitions": lambda: cluster.controller.add_partitions(
            topic._replace(partitions=topic.partitions * 2), 1
        ),
        "put_topic_config": lambda: cluster.controller.put_topic_config("t", {"retention.ms": "1"}),
        "take_offline": lambda: cluster.controller.take_offline([("t", 0)]),
    }
    monkeypatch.setattr(cluster.store, "transaction", confirm_late)
    executor = stepped(cluster)
    change = executor.start(changes[how]())
    deletion = executor.start(cluster.controller.delete_topics(["t"]))
    creation = executor.start(cluster.topics.create_topics(CreateTopicsRequest(topics=[new("t")] * is_recreated)))
    assert not (change.is_over or deletion.is_over)
    assert cluster.image.topics["t"] == topic, "the change is in progress, and later ones wait for it"
    executor.finish()
    assert change.outcome() is None
    assert deletion.outcome() == {}
    assert [result.error_code for result in creation.outcome().topics] == [0] * is_recreated
    assert cluster.image.contents() == stored_image(cluster).contents()
    assert cluster.image.topic_configs == {}
    assert [len(topic.partitions) for topic in cluster.image.topics.values()] == [1] * is_recreated
    assert [p.offline for topic in cluster.image.topics.values() for p in topic.partitions] == [()] * is_recreated
    assert [key for key in log_keys(cluster) if key[0] == "t"] == ([("t", 0)] if is_recreated else [])


@pytest.mark.parametrize("how", ["add_partitions", "put_topic_config"])
def test_a_change_of_a_topic_that_is_deleted_before_its_turn_is_refused(monkeypatch, how):
    cluster = Cluster()
    create(cluster, new("t"))
    topic = cluster.image.topics["t"]
    transaction = cluster.store.transaction

    async def begin_late(operations):
        await Step()
        return await transaction(operations)

    changes = {
        "add_partitions": lambda: cluster.controller.add_partitions(
            topic._replace(partitions=topic.partitions * 2), 1
        ),
        "put_topic_config": lambda: cluster.controller.put_topic_config("t", {"retention.ms": "1"}),
    }
    monkeypatch.setattr(cluster.store, "transaction", begin_late)
    executor = stepped(cluster)
    deletion = executor.start(cluster.controller.delete_topics(["t"]))
    # A configuration is for the topic that has the name; partitions are added to the topic that has the id.
    recreated = [new("t")] if how == "add_partitions" else []
    creation = executor.start(cluster.topics.create_topics(CreateTopicsRequest(topics=recreated)))
    change = executor.start(changes[how]())
    executor.finish()
    assert deletion.outcome() == {}
    assert [result.error_code for result in creation.outcome().topics] == [0] * len(recreated)
    with pytest.raises(KafkaError) as refused:
        change.outcome()
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.image.contents() == stored_image(cluster).contents()
    assert cluster.image.topic_configs == {}
    assert [len(topic.partitions) for topic in cluster.image.topics.values()] == [1] * len(recreated)


def test_a_removal_that_comes_late_leaves_the_recreated_topic_alone():
    cluster = Cluster()
    create(cluster, new("t"))
    deletion = cluster.controller.deletion
    assert run_now(cluster.controller.delete_topics(["t"])) == {}
    create(cluster, new("t"))
    # Two removals of one name can overlap in a store that suspends.
    deletion._unfinished["t"] = None
    run_now(deletion.finish(["t"]))
    assert deletion.obstacle("t") is None
    assert run_now(cluster.store.exists(znodes.state_path("t", 0))) is not None


def test_a_topic_recreated_while_its_predecessor_is_grown_keeps_its_id_and_partitions():
    cluster = Cluster()
    create(cluster, new("t"))
    topic = cluster.image.topics["t"]
    executor = stepped(cluster)
    cluster.controller.context.pause = executor.step
    growth = executor.start(
        cluster.controller.add_partitions(topic._replace(partitions=topic.partitions * 600), 1)
    )
    deletion = executor.start(cluster.controller.delete_topics(["t"]))
    creation = executor.start(cluster.topics.create_topics(CreateTopicsRequest(topics=[new("t")])))
    late = executor.start(cluster.controller.add_partitions(topic._replace(partitions=topic.partitions * 700), 600))
    executor.finish()
    assert growth.outcome() is None
    assert deletion.outcome() == {}
    assert [result.error_code for result in creation.outcome().topics] == [0]
    with pytest.raises(KafkaError):
        late.outcome()
    assert len(cluster.image.topics["t"].partitions) == 1
    assert cluster.image.topics["t"].topic_id != topic.topic_id
    assert cluster.image.contents() == stored_image(cluster).contents()


def test_a_deletion_that_comes_late_leaves_the_store_ready_for_a_new_topic_of_that_name(monkeypatch):
    """Two requests delete one topic, and a third creates it again before the second deletion is written."""
    cluster = Cluster()
    create(cluster, new("t"))
    store, controller = cluster.store, cluster.controller
    transaction = store.transaction

    async def begin_late(operations):
        await Step()
        return await transaction(operations)

    monkeypatch.setattr(store, "transaction", begin_late)
    executor = stepped(cluster)
    controller.context.pause = executor.step
    first = executor.start(controller.delete_topics(["t"]))
    creation = executor.start(cluster.topics.create_topics(CreateTopicsRequest(topics=[new("t")])))
    second = executor.start(controller.delete_topics(["t"]))
    executor.finish()
    assert first.outcome() == {}
    assert [error.code for error in second.outcome().values()] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [result.error_code for result in creation.outcome().topics] == [0]
    assert list(cluster.image.topics) == ["t"]
    assert cluster.image.contents() == stored_image(cluster).contents()


def test_partitions_that_go_offline_one_after_the_other_are_all_in_the_store(monkeypatch):
    cluster = Cluster()
    create(cluster, new("t"), new("u"))
    store, controller = cluster.store, cluster.controller
    transaction = store.transaction

    async def begin_late(operations):
        await Step()
        return await transaction(operations)

    monkeypatch.setattr(store, "transaction", begin_late)
    executor = stepped(cluster)
    first = executor.start(controller.take_offline([("t", 0), ("u", 0)]))
    second = executor.start(controller.take_offline([("t", 0)]))
    executor.finish()
    assert first.outcome() is second.outcome() is None
    assert [stored_image(cluster).partition(name, 0).leader for name in ("t", "u")] == [-1, -1]


@pytest.mark.parametrize("transactions", range(1, 6))
def test_a_controller_starts_and_finishes_a_removal_that_stopped_after_any_transaction(monkeypatch, transactions):
    monkeypatch.setattr("odradek.replication.controller.context.MAX_OPERATIONS", 3)
    cluster = Cluster()
    create(cluster, new("t", 5), new("kept"))
    transaction, left = cluster.store.transaction, [transactions]

    async def stop_after(operations):
        if not left[0]:
            raise RuntimeError("the process is gone")
        left[0] -= 1
        return await transaction(operations)

    monkeypatch.setattr(cluster.store, "transaction", stop_after)
    with suppress(RuntimeError):
        run_now(cluster.controller.delete_topics(["t"]))
    monkeypatch.undo()
    cluster.store.end_session()
    again = Cluster(server=cluster.server)
    assert sorted(again.image.topics) == ["kept"]
    assert run_now(again.store.get_children(znodes.TOPICS)) == ["kept"]
    assert run_now(again.store.get_children(znodes.DELETE_TOPICS)) == []
