"""What a broker does about itself."""

import logging
from types import SimpleNamespace

from odradek.replication.metadata_store import StoreUnavailableError, run_now
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


def test_a_store_whose_disk_died_does_not_keep_it_from_stopping(caplog):
    async def close():
        raise StoreUnavailableError("disk I/O error")

    reactor = SimpleNamespace(stop=lambda: None, callLater=lambda delay_s, action: None)
    broker = Broker(BrokerConfig({}), Surroundings(reactor))
    broker._store = SimpleNamespace(close=close)
    with caplog.at_level(logging.WARNING):
        run_now(broker.stop())
    assert "disk I/O error" in caplog.text
