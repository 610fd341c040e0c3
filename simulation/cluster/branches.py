"""Branches of a partition's history: each unclean election begins one, and the records that its leader lacks are lost.

A leader that has been replaced without its notice continues the branch of its epoch.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.simulation.history import Moment, Partition
from odradek.simulation.unclean_elections import UncleanElection

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition as Replica
    from odradek.server.services import Services
    from odradek.simulation.machine.broker_process import BrokerProcess

TopicIdPartition = tuple[bytes, int]
"""Topic id and partition index."""


class Branch(NamedTuple):
    """The history of a partition after `number` unclean elections."""

    topic_id: bytes
    partition: int
    number: int = 0

    @property
    def earlier(self) -> Iterator["Branch"]:
        """The branches before this one, the latest first."""
        return (self._replace(number=number) for number in range(self.number - 1, -1, -1))


class Branches:
    """The unclean elections of all partitions."""

    def __init__(self) -> None:
        self.elections: list[UncleanElection] = []
        self._by_partition: dict[TopicIdPartition, list[UncleanElection]] = {}
        self._unsettled: list[tuple[TopicIdPartition, UncleanElection]] = []
        self._untruncated: list[UncleanElection] = []

    def begin(self, key: TopicIdPartition, election: UncleanElection) -> None:
        """Add an unclean election."""
        self.elections.append(election)
        self._by_partition.setdefault(key, []).append(election)
        self._unsettled.append((key, election))
        self._untruncated.append(election)

    def elections_of(self, branch: Branch) -> list[UncleanElection]:
        """Return the unclean elections up to the one that began a branch."""
        return self._by_partition.get(branch[:2], [])[: branch.number]

    def of_epoch(self, key: TopicIdPartition, leader_epoch: int) -> Branch:
        """Return the branch to which the leader of an epoch belongs."""
        elections = self._by_partition.get(key)
        if elections is None:
            return Branch(*key)
        return Branch(*key, bisect_right(elections, leader_epoch, key=lambda election: election.leader_epoch))

    def of_replica(self, replica: "Replica") -> Branch:
        """Return the branch of a replica's role."""
        return self.of_epoch((replica.topic_id, replica.index), replica.leader_epoch)

    def latest(self, key: TopicIdPartition) -> Branch:
        """Return the current branch of a partition."""
        return Branch(*key, len(self._by_partition.get(key, ())))

    def observe(self, brokers: Sequence["BrokerProcess"], moment: Callable[[], Moment]) -> None:
        """Note the time from which no broker can lead in the epochs, or has the records, before an election."""
        if self._unsettled:
            before, self._unsettled = self._unsettled, []
            for key, election in before:
                if any(_may_lead_before(broker, key, election) for broker in brokers):
                    self._unsettled.append((key, election))
                else:
                    election.settled = moment()
        if self._untruncated:
            elections, self._untruncated = self._untruncated, []
            for election in elections:
                # Until then a leader that has been replaced without its notice still writes records.
                if election.settled is not None and all(_has_truncated(broker, election) for broker in brokers):
                    election.truncated = moment()
                else:
                    self._untruncated.append(election)


def _may_lead_before(process: "BrokerProcess", key: TopicIdPartition, election: UncleanElection) -> bool:
    """Return whether a broker has a role of an earlier epoch.

    A follower may still receive a delayed request that makes it the leader of its own or another earlier epoch.
    """
    replica = find_replica(process, election.partition)
    return (
        replica is not None
        and (replica.topic_id, replica.index) == key
        and replica.leader_epoch < election.leader_epoch
    )


def _has_truncated(process: "BrokerProcess", election: UncleanElection) -> bool:
    """Return whether a broker is up, and its log has records of the election's leader, or none that were lost."""
    if process.broker is None or not process.is_up or election.kept_end is None:
        return False
    table = process.broker.services.logs.table
    log = table.logs.get(election.partition)
    if log is None:
        return election.partition not in table.offline
    return log.latest_epoch >= election.leader_epoch or log.log_end_offset <= election.kept_end


def find_replica(process: "BrokerProcess", partition: Partition) -> "Replica | None":
    """Return a broker's replica; None if there is none, or the broker has not loaded its logs yet."""
    services = find_services(process)
    return None if services is None else services.replicas.partitions.get(partition)


def find_services(process: "BrokerProcess") -> "Services | None":
    """Return the parts of a broker; None if it does not run, or has not loaded its logs yet."""
    if process.broker is None:
        return None
    try:
        return process.broker.services
    except RuntimeError:
        return None
