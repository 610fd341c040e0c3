"""The watch of other brokers' processes over idle connections."""

import pytest

from odradek.replication.metadata.image import BrokerMetadata, Endpoint
from odradek.server.brokers.peer_watch import FIRST_PAUSE_S, LAST_PAUSE_S, PeerWatch
from odradek.server.tests.broker_network import FakeNetwork


def registration(broker_id, epoch=7, listener="INTERNAL"):
    return BrokerMetadata(broker_id, (Endpoint(listener, "PLAINTEXT", f"host-{broker_id}", 9092),), epoch=epoch)


class Watcher:
    """A watch, its network, and the brokers that it has reported."""

    def __init__(self):
        self.network = FakeNetwork()
        self.reported = []
        self.watch = PeerWatch(
            "INTERNAL", self.reported.append, connect=self.network.connect, clock=self.network.clock
        )

    @property
    def links(self):
        return self.network.links


@pytest.fixture
def watcher():
    return Watcher()


def test_the_end_of_a_process_is_reported_once(watcher):
    watcher.watch.watch([registration(1)])
    link = watcher.network.accept()
    assert link.address == ("host-1", 9092)
    link.lose()
    assert watcher.reported == []
    for _ in range(5):
        watcher.network.clock.advance(LAST_PAUSE_S)
        watcher.links[-1].refuse()
    assert watcher.reported == [registration(1)]
    assert len(watcher.links) == 6


def test_an_address_that_accepts_a_connection_again_can_be_reported_again(watcher):
    watcher.watch.watch([registration(1)])
    watcher.links[-1].refuse()
    watcher.network.clock.advance(LAST_PAUSE_S)
    watcher.network.accept().lose()
    watcher.network.clock.advance(LAST_PAUSE_S)
    watcher.links[-1].refuse()
    assert watcher.reported == [registration(1)] * 2


def test_the_first_pause_follows_a_connection_that_lasted(watcher):
    watcher.watch.watch([registration(1)])
    for _ in range(10):
        watcher.links[-1].refuse()
        watcher.network.clock.advance(LAST_PAUSE_S)
    link = watcher.network.accept()
    watcher.network.clock.advance(2 * LAST_PAUSE_S)
    attempts = len(watcher.links)
    link.lose()
    watcher.network.clock.advance(FIRST_PAUSE_S)
    assert len(watcher.links) == attempts + 1


def test_brokers_that_are_no_longer_watched_are_not_reported(watcher):
    watcher.watch.watch([registration(1), registration(2), registration(3)])
    links = {link.address[0]: link for link in watcher.links}
    links["host-1"].accept()
    links["host-2"].refuse()
    watcher.reported.clear()
    watcher.watch.watch([registration(1)])
    watcher.network.clock.advance(LAST_PAUSE_S)
    assert links["host-3"].is_aborted
    assert (len(watcher.links), watcher.reported) == (3, [])
    watcher.watch.watch([registration(1, epoch=8)])
    assert len(watcher.links) == 4
    watcher.watch.close()
    watcher.network.clock.advance(LAST_PAUSE_S)
    assert (len(watcher.links), watcher.reported) == (4, [])


def test_brokers_are_connected_and_closed_in_their_order(watcher):
    """A run of the simulation depends on it."""
    watcher.watch.watch(map(registration, (5, 3, 8, 1, 9, 2)))
    assert [link.address[0] for link in watcher.links] == [f"host-{number}" for number in (5, 3, 8, 1, 9, 2)]


def test_a_broker_without_the_listener_is_not_watched(watcher):
    watcher.watch.watch([registration(1, listener="EXTERNAL")])
    assert watcher.links == []
