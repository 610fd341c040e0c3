"""What a broker does about itself."""

from types import SimpleNamespace

from odradek.server.broker import Broker
from odradek.server.config import BrokerConfig
from odradek.server.surroundings import Surroundings


def test_without_any_log_directory_it_stops_once_and_has_failed():
    stops = []
    reactor = SimpleNamespace(stop=lambda: stops.append(1), callLater=lambda delay_s, action: None)
    broker = Broker(BrokerConfig({}), Surroundings(reactor))
    broker.services.logs = SimpleNamespace(online_directories=["/other"])
    broker._is_running = True
    broker._on_directory_failure("/data", [])
    assert (stops, broker.has_failed) == ([], False)
    broker.services.logs.online_directories.clear()
    for _ in range(2):
        broker._on_directory_failure("/other", [])
    assert (stops, broker.has_failed) == ([1], True)
