"""Topics found in the log directories by a broker without a metadata store, and what the store had is unknown."""

from odradek.simulation.tests.sole_client import SoleClient


def test_an_epoch_of_which_no_log_has_a_record_does_not_come_back():
    """Consumers ignore metadata whose epoch is older than the last one that they received."""
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    client.wait(5)
    client.restart_after_kill(times=4)
    assert client.epochs() == [4]
    client.stop()
    client.adopt()
    assert client.epochs()[0] > 4
    assert client.world.failures == []


def test_the_end_of_an_epoch_whose_records_were_lost_does_not_move():
    """Consumers find by it that offsets which they have read belong to other records."""
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    client.wait(5)
    client.stop()
    client.start()
    client.restart_after_kill()
    client.produce(b"b", b"c", b"d")
    assert client.end_of_epoch(1) == (1, 4)
    client.restart_after_power_loss()
    assert client.end_of_epoch(1) == (0, 1)
    client.stop()
    client.adopt()
    client.produce(b"B", b"C", b"D", b"E")
    assert client.end_of_epoch(1) == (0, 1)
    assert client.world.failures == []
