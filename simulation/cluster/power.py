"""The rule for power losses and disk failures: an acknowledged record is lost by fewer than all of its replicas.

Replicas acknowledge records that are only in their page caches. If all replicas in sync lose their power, such records
are lost, in Apache Kafka as well. A machine may therefore lose unsynced data only while all replicas of all partitions
are in sync and have all records below their leaders' high watermarks. It may start again at any time: a controller
removes it from the ISRs, also one that is elected after it has started.
"""

from typing import TYPE_CHECKING

from odradek.simulation.cluster.logs import logs_by_partition
from odradek.simulation.cluster.tree import read_partitions

if TYPE_CHECKING:
    from odradek.simulation.world import World


def may_lose_unsynced(world: "World") -> bool:
    """Return whether one machine may lose unsynced data now."""
    return not find_incomplete(world)


def find_incomplete(world: "World") -> str:
    """Return the first reason for which not all replicas are in sync, empty if they are."""
    assert world.zookeeper is not None
    for process in world.brokers:
        if not process.is_up or process.is_stopping:
            return f"{process.name} is not up"
    logs = logs_by_partition(world.brokers)
    numbers = {number: process.name for number, process in enumerate(world.brokers, 1)}
    for partition, stored in read_partitions(world.zookeeper).items():
        state = stored.state
        if state.leader < 0:
            return f"{partition} has no leader"
        if state.adding or state.removing:
            return f"the reassignment of {partition} is in progress"
        if set(state.isr) != set(state.replicas):
            return f"{partition} has ISR {state.isr} of replicas {state.replicas}"
        present = logs.get(partition, {})
        leader = present.get(numbers[state.leader])
        if leader is None:
            return f"{partition} has no log on its leader {state.leader}"
        for replica in state.replicas:
            log = present.get(numbers[replica])
            if log is None or log.log_end_offset < leader.high_watermark:
                return f"replica {replica} of {partition} is behind"
    return ""
