"""The rule for faults: of each partition one member of the ISR keeps everything that is committed.

Replicas acknowledge records that are only in their page caches. A machine that loses its unsynced data may therefore
lose committed records, and it stays in the ISR until the controller or the leader notices. If meanwhile all other
members leave the ISR, or lose data as well, committed records are lost, in Apache Kafka as well. So there must always
be an intact member besides those that may have lost data: one that runs, is not disturbed by a fault, has all committed
records, and is not removed by a reassignment.
"""

from collections.abc import Collection, Container, Sequence
from typing import TYPE_CHECKING

from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata
from odradek.server.fetching.session_watch import WatchedTarget
from odradek.simulation.cluster.logs import logs_by_partition
from odradek.simulation.cluster.tree import StoredPartition, read_registrations
from odradek.simulation.history import Partition

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog
    from odradek.replication.replicas.leader_state import Follower
    from odradek.replication.replicas.partition import Partition as Replica
    from odradek.simulation.machine.broker_process import BrokerProcess
    from odradek.simulation.world import World


class IntactReplicas:
    """Decides which faults are permitted.

    disturbed: names of brokers that a fault separates from others, or whose session has just expired, with the number
        of these faults
    """

    def __init__(self, world: "World") -> None:
        self.disturbed: dict[str, int] = {}
        self._world = world
        self._lost: dict[str, None] = {}
        self._requested: dict[Partition, list[Sequence[int] | None]] = {}

    def lose_data(self, process: "BrokerProcess") -> None:
        """Note that a machine loses its unsynced data now, or may lose it when its process ends."""
        self._lost[process.name] = None

    def may_lose(self, process: "BrokerProcess") -> bool:
        """Return whether a machine may lose its unsynced data now."""
        return self._is_left({process.name}, {*self._lost_names(), process.name})

    def may_lose_disk(self, process: "BrokerProcess") -> bool:
        """Return whether a machine may lose its disk while all processes end.

        The first member of the ISR that returns leaves it, because it could have lost its last records. Two others must
        therefore be intact.
        """
        others = [one.name for one in self._world.brokers if one is not process]
        lost = {*self._lost_names(), process.name}
        return all(self._is_left({process.name, other}, lost) for other in others)

    def may_disturb(self, victims: Collection[str]) -> bool:
        """Return whether brokers may leave ISRs now, without a loss of data."""
        return self._is_left(victims, self._lost_names())

    def begin_reassignment(self, partition: Partition, target: Sequence[int] | None) -> bool:
        """Return whether the replicas of a partition may be reassigned now; a target None cancels.

        Until `end_reassignment` the request may take effect at any time.
        """
        requested = self._requested.setdefault(partition, [])
        requested.append(target)
        is_permitted = self._is_left((), self._lost_names())
        if not is_permitted:
            requested.pop()
        return is_permitted

    def end_reassignment(self, partition: Partition, target: Sequence[int] | None) -> None:
        """Note that the request has had its effect, or has been refused."""
        self._requested[partition].remove(target)

    def _is_left(self, victims: Container[str], lost: Collection[str]) -> bool:
        """Return whether each partition with a lost replica in its ISR has an intact member besides the victims."""
        world = self._world
        assert world.zookeeper is not None
        if not lost:
            return True
        registered = read_registrations(world.zookeeper)
        logs = logs_by_partition(world.brokers)
        for partition, stored in world.stored_partitions().items():
            members = {number: world.brokers[number - 1] for number in stored.state.isr}
            if any(member.name in lost for member in members.values()) and not any(
                self._is_intact(member, stored, logs.get(partition, {}).get(member.name), partition[1])
                and self._stays(partition, number, stored)
                and registered.get(number, stored.written) < stored.written
                and member.name not in victims
                and member.name not in lost
                for number, member in members.items()
            ):
                return False
        return True

    def _stays(self, partition: Partition, number: int, stored: StoredPartition) -> bool:
        """Return whether no reassignment, and no cancellation of one, removes a replica."""
        state, requested = stored.state, self._requested.get(partition, ())
        if number in state.adding or number in state.removing:
            return False
        return all(target is None or number in target for target in requested)

    def _is_intact(
        self, process: "BrokerProcess", stored: StoredPartition, log: "PartitionLog | None", index: int
    ) -> bool:
        """Return whether a member of the ISR runs without a disturbance and has all committed records."""
        return (
            log is not None
            and not process.is_stopping
            and not process.is_paused
            and not process.disk.may_lose_data
            and not self.disturbed.get(process.name)
            and log.log_end_offset >= self._world.committed_end(stored.topic_id, index)
        )

    def _lost_names(self) -> Collection[str]:
        """Return the names of the brokers that may lack committed records and are in an ISR."""
        world = self._world
        assert world.zookeeper is not None
        if not self._lost:
            return ()
        stored = world.stored_partitions()
        logs = logs_by_partition(world.brokers)
        for number, process in enumerate(world.brokers, 1):
            if process.name not in self._lost:
                continue
            member_of = {key: one for key, one in stored.items() if number in one.state.isr}
            if all(
                self._is_intact(process, one, logs.get(key, {}).get(process.name), key[1])
                for key, one in member_of.items()
            ):
                del self._lost[process.name]
        return self._lost


def find_incomplete(world: "World") -> str:
    """Return the first reason for which not all replicas are in sync, empty if they are."""
    assert world.zookeeper is not None
    for process in world.brokers:
        if not process.is_up or process.is_stopping:
            return f"{process.name} is not up"
    partitions = world.stored_partitions()
    for partition, stored in partitions.items():
        state = stored.state
        if state.leader < 0:
            return f"{partition} has no leader"
        if state.adding or state.removing:
            return f"the reassignment of {partition} is in progress"
        if set(state.isr) != set(state.replicas):
            return f"{partition} has ISR {state.isr} of replicas {state.replicas}"
    logs = logs_by_partition(world.brokers)
    numbers = {number: process.name for number, process in enumerate(world.brokers, 1)}
    for partition, stored in partitions.items():
        state = stored.state
        present = logs.get(partition, {})
        leader = present.get(numbers[state.leader])
        if leader is None:
            return f"{partition} has no log on its leader {state.leader}"
        for replica in state.replicas:
            log = present.get(numbers[replica])
            if log is None or log.log_end_offset < leader.high_watermark:
                return f"replica {replica} of {partition} is behind"
    return _find_disagreement(world)


def find_silent_follower(world: "World", begin_s: float) -> str:
    """Return the first follower that has not fetched since a time, empty if there is none.

    A fault may have broken its connection and notified the other end only. Until it leaves the ISR, after
    replica.lag.time.max.ms, nothing is replicated. A new leader epoch counts as a fetch for the ISR, but not here.
    """
    passed_ms = (world.clock.seconds() - begin_s) * 1000
    for process in world.brokers:
        assert process.broker is not None
        services = process.broker.services
        for replica in services.replicas:
            for number, follower in replica.followers.items() if replica.is_leader else ():
                silent_ms = services.monotonic_ms() - _find_last_fetch_ms(replica, number, follower)
                if silent_ms > passed_ms:
                    return f"replica {number} has not fetched {replica!r} for {silent_ms} ms"
    return ""


def _find_last_fetch_ms(replica: "Replica", number: int, follower: "Follower") -> int:
    """Return the time of a follower's last fetch: that of its session, if it has one."""
    watched = [target.watch for target in replica.log_end_watchers if isinstance(target, WatchedTarget)]
    return max((watch.fetched_ms for watch in watched if watch.follower_id == number), default=follower.fetch_ms)


def _find_disagreement(world: "World") -> str:
    """Return the first topic or partition of which a broker's metadata or role differs from the state in ZooKeeper."""
    assert world.zookeeper is not None
    partitions = world.stored_partitions()
    topic_ids = {stored.topic_id for stored in partitions.values()}
    for process in world.brokers:
        assert process.broker is not None
        for topic in process.broker.services.metadata.topics.values():
            if topic.topic_id not in topic_ids:
                return f"{process.name} has the deleted topic {topic.name} in its metadata"
        for local in process.broker.services.replicas:
            if local.is_leader and local.topic_id not in topic_ids:
                return f"{process.name} leads a partition of a deleted topic: {local!r}"
    for partition, stored in partitions.items():
        state = stored.state
        for number, process in enumerate(world.brokers, 1):
            assert process.broker is not None
            services = process.broker.services
            replica = services.replicas.partitions.get(partition)
            if replica is not None and replica.is_leader and number != state.leader:
                return f"{process.name} leads {partition} in epoch {replica.leader_epoch}, the leader is {state.leader}"
            cached = services.metadata.partition(*partition)
            expected = state.leader, state.leader_epoch, state.replicas, state.isr, ()
            if cached is None or expected != (
                cached.leader, cached.leader_epoch, cached.replicas, cached.isr, cached.offline
            ):  # fmt: skip
                return f"{process.name} has {cached} of {partition} in its metadata, ZooKeeper has {state}"
            what = _find_wrong_role(process, number, partition, state)
            if what:
                return f"{process.name} has {what} of {partition}, ZooKeeper has {state}"
    return ""


def _find_wrong_role(process: "BrokerProcess", number: int, partition: Partition, state: PartitionMetadata) -> str:
    """Return a broker's role in a partition if it differs from the state in ZooKeeper, empty otherwise.

    A replica that was removed while its broker was not registered stays, without a leader. A change of the ISR is sent
    to the leader only.
    """
    assert process.broker is not None
    replicas = process.broker.services.replicas
    replica, assigned = replicas.partitions.get(partition), replicas._image.partition(*partition)
    if number not in state.replicas:
        return "" if replica is None or replica.leader == NO_LEADER else f"the role {replica!r}"
    if replica is None or assigned is None:
        return "no replica"
    role = replica.leader, replica.leader_epoch, replica.replicas
    if role != (state.leader, state.leader_epoch, state.replicas):
        return f"the role {role}"
    if number == state.leader and replica.isr != state.isr:
        return f"the ISR {replica.isr}"
    if (assigned.replicas, assigned.adding, assigned.removing) != (state.replicas, state.adding, state.removing):
        return f"the assignment {assigned}"
    return ""
