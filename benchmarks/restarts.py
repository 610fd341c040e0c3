"""Time in which a broker that was killed with a large log serves all of it again."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable

from benchmarks import brokers, wire

TOPIC = "bench-restart"
PARTITIONS = 4
TIMEOUT_S = 120.0

# Apache Kafka can start again only after its controller has expired the killed broker's session. That is not a part of
# recovery, so the timeout is short.
KAFKA_PROPERTIES = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}


class _FirstService(threading.Thread):
    """Sends requests until ApiVersions, Metadata and a Fetch of each partition's last record succeed."""

    def __init__(self, port: int, last_offsets: list[int]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._last_offsets = last_offsets
        self._give_up = time.monotonic() + TIMEOUT_S
        self.served_s = 0.0

    def run(self) -> None:
        while time.monotonic() < self._give_up:
            if self._is_served():
                self.served_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                return
            time.sleep(0.005)

    def _is_served(self) -> bool:
        with contextlib.suppress(OSError, wire.WireError), wire.Admin(self._port, timeout_s=30) as admin:
            if int.from_bytes(admin.call(wire.API_VERSIONS, 0, b"")[:2], "big"):
                return False
            admin.metadata([TOPIC])
            return all(self._fetches(admin, index, last) for index, last in enumerate(self._last_offsets))
        return False

    def _fetches(self, admin: wire.Admin, partition: int, offset: int) -> bool:
        frame, position = wire.fetch_frame(TOPIC, partition, partition_max_bytes=1)
        struct.pack_into(">q", frame, position, offset)
        found = wire.locate_records(memoryview(admin.exchange(bytes(frame))), TOPIC)
        return found.error_code == 0 and found.size_bytes > 0


def restart_seconds(name: str, fill: Callable[[brokers.RestartableBroker, str, int], None]) -> float:
    """Return the time from the start of the process after a SIGKILL to the last record of each partition.

    `fill` writes the log: to (broker, topic, number of partitions). The log is on the disk before the kill, so that no
    write-back disturbs the measurement; the page cache keeps what it can hold, for either broker.
    """
    with brokers.BROKERS[name](KAFKA_PROPERTIES if name == "kafka" else wire.NONE) as broker:
        with wire.Admin(broker.port) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        fill(broker, TOPIC, PARTITIONS)
        with wire.Admin(broker.port) as admin:
            last_offsets = [admin.end_offset(TOPIC, partition) - 1 for partition in range(PARTITIONS)]
        os.sync()
        broker.kill()
        watcher = _FirstService(broker.port, last_offsets)
        watcher.start()
        broker.start()
        began_s = brokers.process_start_s(broker.pid)
        watcher.join(TIMEOUT_S)
        if not watcher.served_s:
            raise wire.WireError(f"not all partitions were served {TIMEOUT_S:.0f} s after the restart")
        return watcher.served_s - began_s
