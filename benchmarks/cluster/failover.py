"""Time from kill -9 of a leader to the first record that the next leader acknowledges, with acks=all.

The client is a loop that asks the remaining brokers for the leader and sends the record to it: no client's intervals of
retries and of metadata are part of the time.
"""

from __future__ import annotations

import contextlib
import time

from benchmarks import wire
from benchmarks.cluster.contestant import ClusterContestant
from benchmarks.cluster.topics import describe, wait_until
from benchmarks.measure import MeasurementError, Pace, Values
from benchmarks.rows import Row

PARTITIONS = 6
TIMEOUT_S = 60.0
POLL_S = 0.005


def _produce(port: int, topic: str, partition: int) -> bool:
    """Send one record; return whether it was acknowledged. Raises OSError, WireError."""
    frame = wire.produce_frame(topic, partition, wire.record_batch(100, 1, wire.now_ms()))
    position = wire.produce_error_position(topic)
    with wire.Admin(port, timeout_s=TIMEOUT_S) as admin:
        return admin.exchange(frame)[position : position + 2] == b"\0\0"


def _choose(contestant: ClusterContestant, topic: str, *, is_controller: bool) -> tuple[int, int]:
    """Return a partition and its leader: the controller, or any other broker."""
    view = contestant.view(topic)
    # Apache Kafka's controller is a separate process.
    controller = view.controller if contestant.name != "kafka" else next(iter(view.ports))
    for index, state in view.partitions.items():
        if (state.leader == controller) == is_controller:
            return index, state.leader
    raise MeasurementError("no partition has such a leader")


def _measure(contestant: ClusterContestant, *, is_controller: bool) -> Values:
    with contestant.topic(PARTITIONS) as topic:
        partition, leader = _choose(contestant, topic, is_controller=is_controller)
        wait_until(lambda: _produce(contestant.ports[leader], topic, partition), "a record is acknowledged")
        others = [port for broker, port in contestant.ports.items() if broker != leader]
        begin_s = time.monotonic()
        contestant.cluster.kill(leader)
        try:
            failover_s = _await_record(others, topic, partition, leader) - begin_s
        finally:
            contestant.cluster.start_broker(leader)
        contestant.await_whole(topic, PARTITIONS)
    return {"failover_s": failover_s}


def _await_record(ports: list[int], topic: str, partition: int, lost: int) -> float:
    """Return the time of the first acknowledgement."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_s:
        for port in ports:
            with contextlib.suppress(OSError, wire.WireError):
                view = describe(port, topic)
                leader = view.partitions[partition].leader
                if leader not in (-1, lost) and _produce(view.ports[leader], topic, partition):
                    return time.monotonic()
        time.sleep(POLL_S)
    raise MeasurementError(f"no record was acknowledged in {TIMEOUT_S:.0f} s")


def failover(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Kill a leader that is not the controller."""
    return _measure(contestant, is_controller=False)


def failover_of_controller(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Kill a leader that is Odradek's controller."""
    return _measure(contestant, is_controller=True)
