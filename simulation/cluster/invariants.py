"""Invariants of a cluster, checked after each step of a broker that is up.

They compare the brokers with each other, with ZooKeeper and with earlier steps. Changes in ZooKeeper are checked at the
next step of any broker, several of them at once. Source: the invariants in the description of ZooKeeper mode, by Apache
Kafka's replication protocol (KIP-101, KIP-497, KIP-841).
"""

from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata
from odradek.simulation.cluster.committed import CommittedBatches, TopicIdPartition
from odradek.simulation.cluster.tree import (
    StoredPartition,
    read_data,
    read_number,
    read_partitions,
    read_registrations,
    read_written,
)
from odradek.simulation.history import Partition, name_of

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog
    from odradek.replication.replicas.partition import Partition as Replica
    from odradek.simulation.machine.broker_process import BrokerProcess
    from odradek.simulation.machine.zookeeper import ZooKeeper

_PRODUCER_IDS: Final = "/latest_producer_id_block"


ReplicaInProcess = tuple[str, int, TopicIdPartition]
"""A replica in one process of its broker: the broker's name, its number of starts, and the partition."""


class HighWatermark(NamedTuple):
    """A leader's high watermark, with its epoch and the replicas in sync."""

    leader_epoch: int
    offset: int
    isr: tuple[int, ...]


class ClusterInvariants:
    """The invariants, and the state of earlier steps with which they compare.

    brokers: all brokers, in the order of their ids from 1
    stored: the partitions in ZooKeeper, as of the last check
    committed: the committed batches of all partitions
    unclean: topics with unclean elections, which lose records
    """

    def __init__(self, zookeeper: "ZooKeeper", brokers: Sequence["BrokerProcess"]) -> None:
        self.stored: dict[Partition, StoredPartition] = {}
        self.committed = CommittedBatches()
        self.unclean: Container[str] = ()
        self._brokers = brokers
        self._zookeeper = zookeeper
        self._transaction = -1
        self._leaders: dict[tuple[TopicIdPartition, int], str] = {}
        self._led_logs: dict[tuple[str, TopicIdPartition], PartitionLog] = {}
        self._leader_epochs: dict[ReplicaInProcess, int] = {}
        self._high_watermarks: dict[ReplicaInProcess, HighWatermark] = {}
        self._latest_epochs: dict[TopicIdPartition, int] = {}
        self._checked: dict[Replica, tuple[object, ...]] = {}
        self._controllers: dict[int, bytes] = {}
        self._controller_epoch = -1
        self._block_end = -1

    def check(self, process: "BrokerProcess") -> Iterator[str]:
        """Report violations after a step of a broker: in ZooKeeper, and in replicas of the broker that have changed."""
        yield from self._check_tree()
        assert process.broker is not None
        transaction, checked = self._transaction, self._checked
        for replica in process.broker.services.replicas:
            log = replica.log
            state = None if log is None else log.state
            seen = (
                transaction, replica.leader_epoch, replica.partition_epoch, replica.is_leader, replica.isr,
                replica.maximal_isr, log, -1 if state is None else state.high_watermark,
                -1 if state is None else state.log_end_offset,
            )  # fmt: skip
            if checked.get(replica) != seen:
                checked[replica] = seen
                yield from self._check_replica(process, replica)

    def note_committed(self, process: "BrokerProcess") -> None:
        """Record the high watermarks of a broker's leaders, without a check."""
        assert process.broker is not None
        for replica in process.broker.services.replicas:
            if replica.is_leader and replica.log is not None:
                self.committed.commit((replica.topic_id, replica.index), replica.log.high_watermark)

    # Brokers

    def _check_replica(self, process: "BrokerProcess", replica: "Replica") -> Iterator[str]:
        key = replica.topic_id, replica.index
        in_process = process.name, process.start_count, key
        where = f"{process.name} {replica!r}"
        if replica.leader_epoch < self._leader_epochs.get(in_process, -1):
            yield f"{where}: the leader epoch was {self._leader_epochs[in_process]}"
        self._leader_epochs[in_process] = replica.leader_epoch
        log = replica.log
        if log is None or log.state.is_closed:
            return
        entries = log.state.leader_epochs.entries
        for (epoch, start), (later_epoch, later_start) in pairwise(entries):
            if epoch >= later_epoch or start >= later_start:
                yield f"{where}: leader epochs {entries} do not increase"
                break
        if replica.is_leader:
            self._led_logs[process.name, key] = log
            yield from self._check_leader(process, replica, log, where)
        else:
            self._led_logs.pop((process.name, key), None)
        yield from self._check_records(process, replica, log, where)

    def _check_leader(
        self, process: "BrokerProcess", replica: "Replica", log: "PartitionLog", where: str
    ) -> Iterator[str]:
        key = replica.topic_id, replica.index
        in_process = process.name, process.start_count, key
        leader = self._leaders.setdefault((key, replica.leader_epoch), process.name)
        if leader != process.name:
            yield f"{where}: {leader} leads in the same epoch"
        if not replica.isr or not set(replica.isr) <= set(replica.replicas):
            yield f"{where}: ISR {replica.isr} of replicas {replica.replicas}"
        if replica.leader not in replica.isr:
            yield f"{where}: the leader is not in the ISR {replica.isr}"
        if replica.leader_epoch > self._latest_epochs.get(key, -1):
            self._latest_epochs[key] = replica.leader_epoch
            committed = self.committed.end(key)
            if log.log_end_offset < committed and replica.topic not in self.unclean:
                yield f"{where}: its log ends at {log.log_end_offset}, {committed} is committed"
        yield from self._check_high_watermark(in_process, replica, log, where)
        stored = self.stored.get((replica.topic, replica.index))
        if stored is not None and stored.topic_id == replica.topic_id:
            yield from self._check_maximal_isr(where, replica, stored)

    def _check_high_watermark(
        self, in_process: ReplicaInProcess, replica: "Replica", log: "PartitionLog", where: str
    ) -> Iterator[str]:
        """Check that it never falls within an epoch, waits for min.insync.replicas, and is reached by the ISR."""
        before = self._high_watermarks.get(in_process, HighWatermark(-1, -1, ()))
        now = HighWatermark(replica.leader_epoch, log.high_watermark, replica.isr)
        self._high_watermarks[in_process] = now
        if before.leader_epoch == now.leader_epoch:
            least = min(log.config.min_insync_replicas, len(replica.replicas))
            if now.offset < before.offset:
                yield f"{where}: the high watermark fell from {before.offset} to {now.offset}"
            # The ISR may have shrunk in the same step, after the high watermark rose.
            elif now.offset > before.offset and max(len(before.isr), len(now.isr)) < least:
                yield f"{where}: the high watermark rose with ISR {replica.isr}, min.insync.replicas is {least}"
        if now.offset > before.offset or now.isr != before.isr:
            self.committed.commit((replica.topic_id, replica.index), now.offset)
            yield from self._check_members(where, replica, now.offset)

    def _check_records(
        self, process: "BrokerProcess", replica: "Replica", log: "PartitionLog", where: str
    ) -> Iterator[str]:
        """Report records below a replica's high watermark that are not committed, or differ from other replicas'."""
        if replica.topic in self.unclean:
            return
        key = replica.topic_id, replica.index
        if log.high_watermark > self.committed.end(key):
            # A leader may have committed it while it was not checked: at the end of its start, or in the step in which
            # its log directory failed.
            self._note_leaders(replica)
            if log.high_watermark > self.committed.end(key):
                yield f"{where}: high watermark {log.high_watermark}, committed is {self.committed.end(key)}"
        for what in self.committed.compare(process.name, key, log, log.high_watermark):
            yield f"{where}: {what}"

    def _note_leaders(self, replica: "Replica") -> None:
        key = replica.topic_id, replica.index
        for process in self._brokers:
            led = self._led_logs.get((process.name, key))
            if led is not None:
                self.committed.commit(key, led.high_watermark)
            services = None if process.broker is None else getattr(process.broker, "services", None)
            other = None if services is None else services.replicas.partitions.get((replica.topic, replica.index))
            if other is not None and other.is_leader and other.log is not None and other.topic_id == replica.topic_id:
                self.committed.commit((replica.topic_id, replica.index), other.log.high_watermark)

    def _check_members(self, where: str, replica: "Replica", high_watermark: int) -> Iterator[str]:
        """Check that the members of the ISR, also of that in ZooKeeper, have all records below the high watermark.

        Unless this leader has been replaced, they have all records that earlier leaders have committed, too.
        """
        stored = self.stored.get((replica.topic, replica.index))
        members = dict.fromkeys(replica.isr)
        if stored is not None and (stored.state.leader, stored.state.leader_epoch) == (
            replica.leader, replica.leader_epoch
        ):  # fmt: skip
            members |= dict.fromkeys(stored.state.isr)
            if replica.topic not in self.unclean:
                high_watermark = max(high_watermark, self.committed.end((replica.topic_id, replica.index)))
        for member in members:
            if member not in replica.replicas:
                continue
            process = self._brokers[member - 1]
            if process.broker is None or not process.is_up:
                continue
            other = process.broker.services.replicas.partitions.get((replica.topic, replica.index))
            if other is None or other.log is None or other.topic_id != replica.topic_id:
                continue
            end = other.log.log_end_offset
            if end < high_watermark:
                if not self._has_restarted(member, stored):
                    name = process.name
                    yield f"{where}: high watermark {high_watermark}, the log of {name} in the ISR ends at {end}"
            elif replica.topic not in self.unclean:
                key = replica.topic_id, replica.index
                for what in self.committed.compare(process.name, key, other.log, high_watermark):
                    yield f"{process.name} {other!r}: {what}"

    def _has_restarted(self, member: int, stored: StoredPartition | None) -> bool:
        """Return whether a member of the ISR has registered since, and is to be removed."""
        registered = read_registrations(self._zookeeper).get(member)
        return stored is None or registered is None or registered > stored.written

    def _check_maximal_isr(self, where: str, replica: "Replica", stored: StoredPartition) -> Iterator[str]:
        """Check that a leader waits for all replicas that the controller may elect."""
        if stored.state.partition_epoch != replica.partition_epoch or stored.state.leader != replica.leader:
            return
        if not set(stored.state.isr) <= set(replica.maximal_isr):
            maximal = replica.maximal_isr
            yield f"{where}: maximal ISR {maximal}, ZooKeeper has {stored.state.isr} in the same partition epoch"

    # ZooKeeper

    def _check_tree(self) -> Iterator[str]:
        if self._zookeeper.last_transaction == self._transaction:
            return
        self._transaction = self._zookeeper.last_transaction
        yield from self._check_controller()
        yield from self._check_producer_ids()
        before, self.stored = self.stored, read_partitions(self._zookeeper, self.stored)
        for partition, stored in self.stored.items():
            old = before.get(partition)
            if stored is old:
                continue
            where = f"ZooKeeper {name_of(partition)}"
            yield from self._check_state(where, stored.state)
            if old is not None and old.topic_created == stored.topic_created:
                if old.topic_id != stored.topic_id:
                    yield f"{where}: topic id {old.topic_id.hex()} became {stored.topic_id.hex()}"
                yield from self._check_change(where, old.state, stored)
                if stored.state.leader_recovery_state and partition[0] not in self.unclean:
                    yield f"{where}: an unclean election, which is not enabled"

    def _check_state(self, where: str, state: PartitionMetadata) -> Iterator[str]:
        if not state.isr or not set(state.isr) <= set(state.replicas):
            yield f"{where}: ISR {state.isr} of replicas {state.replicas}"
        if state.leader >= 0 and state.leader not in state.isr:
            yield f"{where}: the leader {state.leader} is not in the ISR {state.isr}"
        if state.leader_recovery_state and len(state.isr) != 1:
            yield f"{where}: recovering with ISR {state.isr}"

    def _check_change(self, where: str, old: PartitionMetadata, stored: StoredPartition) -> Iterator[str]:
        state = stored.state
        for name in ("leader_epoch", "partition_epoch", "controller_epoch"):
            was, now = getattr(old, name), getattr(state, name)
            if now < was:
                yield f"{where}: {name} fell from {was} to {now}"
        is_written = state.partition_epoch > old.partition_epoch
        is_later = stored.written > read_written(self._zookeeper, znodes.CONTROLLER_EPOCH)
        if is_written and is_later and state.controller_epoch != self._controller_epoch:
            yield f"{where}: written by the controller of epoch {state.controller_epoch} in {self._controller_epoch}"
        if old.leader_epoch == state.leader_epoch and -1 != old.leader != state.leader:
            yield f"{where}: leaders {old.leader} and {state.leader} in epoch {state.leader_epoch}"
        is_next = state.partition_epoch == old.partition_epoch + 1
        if is_next and -1 != state.leader not in old.isr and not state.leader_recovery_state:
            yield f"{where}: leader {state.leader} was not in the ISR {old.isr}"

    def _check_controller(self) -> Iterator[str]:
        epoch = read_number(self._zookeeper, znodes.CONTROLLER_EPOCH)
        if epoch < self._controller_epoch:
            yield f"ZooKeeper: the controller epoch fell from {self._controller_epoch} to {epoch}"
        self._controller_epoch = epoch
        owner = read_data(self._zookeeper, znodes.CONTROLLER)
        if owner is not None and self._controllers.setdefault(epoch, owner) != owner:
            yield f"ZooKeeper: controllers {self._controllers[epoch]!r} and {owner!r} in epoch {epoch}"

    def _check_producer_ids(self) -> Iterator[str]:
        data = read_data(self._zookeeper, _PRODUCER_IDS)
        if not data:
            return
        block = znodes.decode(data)
        start, end = int(block["block_start"]), int(block["block_end"])
        if end != self._block_end:
            if start <= self._block_end:
                yield f"ZooKeeper: producer ids {start} to {end} overlap those up to {self._block_end}"
            self._block_end = end
