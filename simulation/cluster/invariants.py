"""Invariants of a cluster, checked after each step of a broker that is up.

They compare the brokers with each other, with ZooKeeper and with earlier steps. Changes in ZooKeeper are checked at the
next step of any broker, several of them at once. Source: the invariants in the description of ZooKeeper mode, by Apache
Kafka's replication protocol (KIP-101, KIP-497, KIP-841).

After an unclean election the invariants of committed records hold within each branch of the partition's history.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_BROKER_EPOCH, PartitionMetadata
from odradek.simulation.audits.invariants import find_violations_of
from odradek.simulation.cluster.branches import Branches, TopicIdPartition, find_replica, find_services
from odradek.simulation.cluster.committed import CommittedBatches
from odradek.simulation.cluster.tree import (
    StoredPartition,
    StoredPartitions,
    StoredTopic,
    read_children,
    read_data,
    read_number,
    read_registrations,
    read_topics,
    read_written,
)
from odradek.simulation.history import Moment, Partition, name_of
from odradek.simulation.machine.zookeeper import NO_SESSION
from odradek.simulation.unclean_elections import UncleanElection

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog
    from odradek.replication.replicas.partition import Partition as Replica
    from odradek.server.broker import Broker
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
    branches: the unclean elections
    committed: the committed batches of all branches
    unclean: topics with unclean elections, which lose records
    logged: topic, partition and leader epoch of the unclean elections that a controller has logged
    moment: the current moment of the history
    """

    def __init__(self, zookeeper: "ZooKeeper", brokers: Sequence["BrokerProcess"]) -> None:
        self.partitions = StoredPartitions(zookeeper)
        self.stored: dict[Partition, StoredPartition] = {}
        self.branches = Branches()
        self.committed = CommittedBatches()
        self.unclean: Container[str] = ()
        self.logged: set[tuple[str, int, int]] = set()
        self.moment: Callable[[], Moment] = lambda: Moment(0, 0)
        self._brokers = brokers
        self._zookeeper = zookeeper
        self._transaction = -1
        self._leaders: dict[tuple[TopicIdPartition, int], str] = {}
        self._led_logs: dict[tuple[str, TopicIdPartition], tuple[int, PartitionLog]] = {}
        self._leader_epochs: dict[ReplicaInProcess, int] = {}
        self._high_watermarks: dict[ReplicaInProcess, HighWatermark] = {}
        self._latest_epochs: dict[TopicIdPartition, int] = {}
        self._checked: dict[Replica, tuple[object, ...]] = {}
        self._controllers: dict[int, bytes] = {}
        self._controller_epoch = -1
        self._controller_session = NO_SESSION
        self._followed: dict[tuple[str, int], tuple[int, int]] = {}
        self._topics: dict[str, StoredTopic] = {}
        self._topic_ids: dict[bytes, tuple[str, int]] = {}
        self._deletions: frozenset[str] = frozenset()
        self._block_written = self._block_end = -1

    def check(self, process: "BrokerProcess") -> Iterator[str]:
        """Report violations after a step of a broker: in ZooKeeper, and in replicas of the broker that have changed."""
        yield from self.check_tree()
        assert process.broker is not None
        yield from self._check_followed_controller(process, process.broker)
        transaction, checked = self._transaction, self._checked
        for replica in process.broker.services.replicas:
            log = replica.log
            seen: tuple[object, ...] = (
                transaction, replica.leader_epoch, replica.partition_epoch, replica.is_leader, replica.isr,
                replica.maximal_isr, log,
            )  # fmt: skip
            if log is not None:
                state = log.state
                seen += (
                    state.high_watermark, state.log_end_offset, state.log_start_offset,
                    state.producer_state.first_unstable_offset, state.leader_epochs.latest_epoch,
                )  # fmt: skip
            if checked.get(replica) != seen:
                checked[replica] = seen
                if not process.is_stopping:
                    yield from find_violations_of(replica)
                yield from self._check_replica(process, replica)
        self.branches.observe(self._brokers, self.moment)

    def note_committed(self, process: "BrokerProcess") -> None:
        """Record the high watermarks of a broker's leaders, without a check.

        The records themselves are compared if an unclean election may lose some of them.
        """
        assert process.broker is not None
        for replica in process.broker.services.replicas:
            if replica.topic in self.unclean:
                for _ in self._check_replica(process, replica):
                    pass
            elif replica.is_leader and replica.log is not None:
                self._commit(replica.topic_id, replica.index, replica.leader_epoch, replica.log)
        self.branches.observe(self._brokers, self.moment)

    # Brokers

    def _check_followed_controller(self, process: "BrokerProcess", broker: "Broker") -> Iterator[str]:
        """Check that a broker does not follow an earlier controller again, in any of its requests."""
        services = broker.services
        cluster: Any = services.cluster
        control = cluster._control
        epochs = services.metadata.controller_epoch, 0 if control is None else control._controller_epoch
        in_process = process.name, process.start_count
        for epoch, before in zip(epochs, self._followed.get(in_process, epochs), strict=True):
            if epoch < before:
                yield f"{process.name} follows the controller of epoch {epoch} after that of {before}"
                break
        self._followed[in_process] = epochs

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
            self._led_logs[process.name, key] = replica.leader_epoch, log
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
            self._begin_branch(*key, replica.leader_epoch, log)
            committed = self.committed.end(self.branches.of_replica(replica))
            if log.log_end_offset < committed:
                yield f"{where}: its log ends at {log.log_end_offset}, {committed} is committed"
        yield from self._check_high_watermark(in_process, replica, log, where)
        stored = self.stored.get((replica.topic, replica.index))
        if stored is not None and stored.topic_id == replica.topic_id:
            yield from self._check_maximal_isr(where, replica, stored)
        yield from self._check_joining(replica, where)

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
            self._commit(replica.topic_id, replica.index, replica.leader_epoch, log)
            yield from self._check_members(where, replica, now.offset)

    def _check_records(
        self, process: "BrokerProcess", replica: "Replica", log: "PartitionLog", where: str
    ) -> Iterator[str]:
        """Report records below a replica's high watermark that are not committed, or differ from other replicas'.

        A follower of an uncleanly elected leader may have records that are lost, until it has fetched from that leader.
        """
        branch = self.branches.of_replica(replica)
        entries = log.state.leader_epochs.entries
        latest_epoch = entries[-1][0] if entries else -1
        if not replica.is_leader and branch != self.branches.of_epoch(branch[:2], latest_epoch):
            return
        if log.high_watermark > self.committed.end(branch):
            # A leader may have committed it while it was not checked: at the end of its start, or in the step in which
            # its log directory failed.
            self._note_leaders(replica)
            if log.high_watermark > self.committed.end(branch):
                yield f"{where}: high watermark {log.high_watermark}, committed is {self.committed.end(branch)}"
        for what in self.committed.compare(process.name, branch, log, log.high_watermark):
            yield f"{where}: {what}"

    def _note_leaders(self, replica: "Replica") -> None:
        key = replica.topic_id, replica.index
        for process in self._brokers:
            led = self._led_logs.get((process.name, key))
            if led is not None:
                self._commit(*key, *led)
            other = find_replica(process, (replica.topic, replica.index))
            if other is not None and other.is_leader and other.log is not None and other.topic_id == replica.topic_id:
                self._commit(*key, other.leader_epoch, other.log)

    def _commit(self, topic_id: bytes, index: int, leader_epoch: int, log: "PartitionLog") -> None:
        """Record the high watermark of a leader."""
        self._begin_branch(topic_id, index, leader_epoch, log)
        self.committed.commit(self.branches.of_epoch((topic_id, index), leader_epoch), log.high_watermark)

    def _begin_branch(self, topic_id: bytes, index: int, leader_epoch: int, log: "PartitionLog") -> None:
        """Begin the branch of a leader, unless that has been done."""
        branch = self.branches.of_epoch((topic_id, index), leader_epoch)
        if branch.number and branch not in self.committed:
            end = self.committed.begin(branch, log)
            for election in self.branches.elections_of(branch):
                election.kept_end = end if election.kept_end is None else election.kept_end

    def _check_members(self, where: str, replica: "Replica", high_watermark: int) -> Iterator[str]:
        """Check that the members of the ISR, also of that in ZooKeeper, have all records below the high watermark.

        Unless this leader has been replaced, they have all records that earlier leaders have committed, too. If it has
        been, without its notice, its members may have left the ISR; a reassignment deletes their logs.
        """
        stored = self.stored.get((replica.topic, replica.index))
        branch = self.branches.of_replica(replica)
        members = dict.fromkeys(replica.isr)
        if stored is not None and stored.state.leader_epoch > replica.leader_epoch:
            members = dict.fromkeys(member for member in members if member in stored.state.isr)
        elif stored is not None and (stored.state.leader, stored.state.leader_epoch) == (
            replica.leader, replica.leader_epoch
        ):  # fmt: skip
            members |= dict.fromkeys(stored.state.isr)
            high_watermark = max(high_watermark, self.committed.end(branch))
        for member in members:
            if member not in replica.replicas:
                continue
            process = self._brokers[member - 1]
            if process.broker is None or not process.is_up:
                continue
            other = process.broker.services.replicas.partitions.get((replica.topic, replica.index))
            if other is None or other.log is None or self.branches.of_replica(other) != branch:
                continue
            end = other.log.log_end_offset
            if end < high_watermark:
                if not self._has_restarted(member, stored):
                    name = process.name
                    yield f"{where}: high watermark {high_watermark}, the log of {name} in the ISR ends at {end}"
            else:
                for what in self.committed.compare(process.name, branch, other.log, high_watermark):
                    yield f"{process.name} {other!r}: {what}"

    def _check_joining(self, replica: "Replica", where: str) -> Iterator[str]:
        """Check that a replica that is being added to the ISR follows this leader: that it has its leader epoch.

        One that has restarted meanwhile has no leader epoch yet.
        """
        for member in replica.maximal_isr:
            if member in replica.isr:
                continue
            other = find_replica(self._brokers[member - 1], (replica.topic, replica.index))
            if other is None or other.topic_id != replica.topic_id:
                continue
            if -1 != other.leader_epoch < replica.leader_epoch:
                yield f"{where}: replica {member} joins the ISR, and follows a leader in epoch {other.leader_epoch}"

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

    def check_tree(self) -> Iterator[str]:
        """Report violations after changes in ZooKeeper."""
        if self._zookeeper.last_transaction == self._transaction:
            return
        self._transaction = self._zookeeper.last_transaction
        yield from self._check_controller()
        yield from self._check_producer_ids()
        yield from self._check_topics()
        before, self.stored = self.stored, self.partitions.read()
        for partition, stored in self.stored.items():
            old = before.get(partition)
            if stored is old:
                continue
            where = f"ZooKeeper {name_of(partition)}"
            yield from self._check_state(where, stored.state)
            if old is not None and old.topic_created == stored.topic_created:
                yield from self._check_change(where, old.state, stored)
                if old.written != stored.written:
                    yield from self._check_writer(where)
                    yield from self._check_joined(where, partition, old.state, stored.state)
                if _is_unclean_election(old.state, stored.state):
                    yield from self._check_unclean_election(where, partition, stored)

    def _check_unclean_election(self, where: str, partition: Partition, stored: StoredPartition) -> Iterator[str]:
        epoch = stored.state.leader_epoch
        if partition[0] not in self.unclean:
            yield f"{where}: an unclean election, which is not enabled"
        elif (*partition, epoch) not in self.logged:
            yield f"{where}: an unclean election that no controller has logged"
        self.branches.begin((stored.topic_id, partition[1]), UncleanElection(partition, epoch, self.moment()))

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

    def _check_topics(self) -> Iterator[str]:
        """Check the nodes of topics and of deletions; a topic that is created may be written by any broker."""
        before, self._topics = self._topics, read_topics(self._zookeeper, self._topics)
        for name, topic in self._topics.items():
            old = before.get(name)
            if old == topic:
                continue
            where = f"ZooKeeper {name}"
            if topic.topic_id:
                user = self._topic_ids.setdefault(topic.topic_id, (name, topic.created))
                if user != (name, topic.created):
                    yield f"{where}: its id {topic.topic_id.hex()} was used before, by {user[0]}"
            if old is not None and old.created == topic.created:
                if old.topic_id and old.topic_id != topic.topic_id:
                    yield f"{where}: topic id {old.topic_id.hex()} became {topic.topic_id.hex()}"
                yield from self._check_writer(where)
        deletions = read_children(self._zookeeper, znodes.DELETE_TOPICS)
        deleted = [name for name, old in before.items() if name not in self._topics]
        for name in dict.fromkeys([*deleted, *sorted(deletions ^ self._deletions)]):
            yield from self._check_writer(f"ZooKeeper {name}, its deletion")
        self._deletions = deletions

    def _check_writer(self, where: str) -> Iterator[str]:
        """Check that the last change is one of the session in which the present controller was elected."""
        writer = self._zookeeper.writer
        if writer != self._controller_session:
            yield f"{where}: written in session {writer}, the controller has {self._controller_session}"

    def _check_joined(
        self, where: str, partition: Partition, old: PartitionMetadata, new: PartitionMetadata
    ) -> Iterator[str]:
        """Check that replicas join the ISR in the registrations that the controller has followed (KIP-903)."""
        joined = [replica for replica in new.isr if replica not in old.isr]
        owner = read_data(self._zookeeper, znodes.CONTROLLER)
        if not joined or new.leader < 0 or not owner:
            return
        leader = find_replica(self._brokers[new.leader - 1], partition)
        state = None if leader is None else leader._leader_state
        change = None if state is None else state.isr.pending
        controller = find_services(self._brokers[znodes.decode_controller(owner) - 1])
        if change is None or controller is None or (change.leader_epoch, change.isr) != (new.leader_epoch, new.isr):
            return
        registered = controller.controller.image.brokers
        for replica, epoch in zip(change.isr, change.broker_epochs, strict=True):
            if replica not in joined or replica not in registered or epoch == NO_BROKER_EPOCH:
                continue
            if epoch != registered[replica].epoch:
                yield (
                    f"{where}: replica {replica} joined the ISR in its registration {epoch}, the controller has "
                    f"followed {registered[replica].epoch}"
                )

    def _check_controller(self) -> Iterator[str]:
        epoch = read_number(self._zookeeper, znodes.CONTROLLER_EPOCH)
        if epoch < self._controller_epoch:
            yield f"ZooKeeper: the controller epoch fell from {self._controller_epoch} to {epoch}"
        elif epoch > self._controller_epoch:
            self._controller_session = self._zookeeper.writer
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
        written = read_written(self._zookeeper, _PRODUCER_IDS)
        # Two brokers that reserve the same block write the same ends.
        if written != self._block_written:
            if start <= self._block_end:
                yield f"ZooKeeper: producer ids {start} to {end} overlap those up to {self._block_end}"
            self._block_written, self._block_end = written, end


def _is_unclean_election(old: PartitionMetadata, new: PartitionMetadata) -> bool:
    """Return whether a leader was elected that was not in the ISR, or was removed from it in the same change."""
    if new.leader < 0 or not new.leader_recovery_state or new.leader_epoch == old.leader_epoch:
        return False
    return not old.leader_recovery_state or new.leader not in old.isr
