"""Committed offsets of one shard, and when they expire.

Expiry follows KIP-211: an offset's time runs from its commit or from when its group became empty, unless the commit
itself carried an expiry (OffsetCommit versions 2 to 4).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from odradek.coordinator.groups.classic.group import EMPTY, STABLE, Group
from odradek.coordinator.groups.records import OffsetCommitValue

NO_PRODUCER_ID: Final = -1


class CommittedOffset(NamedTuple):
    """A committed offset and the offset of the record that holds it (-1 if not known)."""

    record_offset: int
    value: OffsetCommitValue


Partitions = dict[int, CommittedOffset]
Topics = dict[str, Partitions]


class OffsetTable:
    """Committed offsets by group, topic and partition; no level is ever left empty."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[str, Topics] = {}

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.groups.get(group_id, {}).get(topic, {}).get(partition)

    def put(self, group_id: str, topic: str, partition: int, offset: CommittedOffset) -> None:
        try:
            self.groups[group_id][topic][partition] = offset
        except KeyError:
            self.groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.groups.get(group_id)
        partitions = topics.get(topic) if topics else None
        if topics is None or partitions is None or partitions.pop(partition, None) is None:
            return
        if not partitions:
            del topics[topic]
            if not topics:
                del self.groups[group_id]

    def of_group(self, group_id: str) -> Topics:
        """The group's offsets, to be read only."""
        return self.groups.get(group_id, {})

    def partitions_of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Topic and partition of the group's offsets, while they change: each topic as it is when it is reached."""
        for topic in list(self.of_group(group_id)):
            for partition in list(self.of_group(group_id).get(topic, ())):
                yield topic, partition

    def items(self) -> Iterator[tuple[str, str, int, CommittedOffset]]:
        for group_id, topics in self.groups.items():
            for topic, partitions in topics.items():
                for partition, offset in partitions.items():
                    yield group_id, topic, partition, offset


class UnreplicatedChange(NamedTuple):
    """A change that is applied, but whose record is above the high watermark: the state of its partition before it."""

    record_offset: int
    visible: CommittedOffset | None
    is_pending: bool


class OffsetStore:
    """Visible offsets, and those of transactions whose end is not known yet: the state as of the end of the log.

    Replaying records is the only thing that changes it. Records are applied when they are appended, so that decisions
    include what is being written; clients get the state as of the high watermark (`replicated`, `is_unstable`).
    """

    __slots__ = ("_open", "_unreplicated", "_unreplicated_keys", "pending", "visible")

    def __init__(self) -> None:
        self.visible = OffsetTable()
        self.pending: dict[int, OffsetTable] = {}
        """Producer id -> offsets of its open transaction."""
        self._open: dict[str, dict[tuple[str, int], set[int]]] = {}  # group -> (topic, partition) -> producer ids
        self._unreplicated: dict[str, dict[tuple[str, int], deque[UnreplicatedChange]]] = {}
        self._unreplicated_keys: deque[tuple[int, str, tuple[str, int]]] = deque()  # record offset, group, partition

    # -- changes -------------------------------------------------------------------------------------------------

    def replay(
        self,
        group_id: str,
        topic: str,
        partition: int,
        value: OffsetCommitValue | None,
        offset: int,
        producer_id: int,
        *,
        is_replicated: bool = True,
    ) -> None:
        """Apply a record; a tombstone also takes away what open transactions hold for that partition."""
        if not is_replicated:
            self._keep_state(group_id, topic, partition, offset)
        if value is None:
            self.visible.remove(group_id, topic, partition)
            for open_producer_id in self._open.get(group_id, {}).pop((topic, partition), ()):
                self.pending[open_producer_id].remove(group_id, topic, partition)
            self._drop_if_closed(group_id)
        elif producer_id == NO_PRODUCER_ID:
            self.visible.put(group_id, topic, partition, CommittedOffset(offset, value))
        else:
            table = self.pending.setdefault(producer_id, OffsetTable())
            table.put(group_id, topic, partition, CommittedOffset(offset, value))
            self._open.setdefault(group_id, {}).setdefault((topic, partition), set()).add(producer_id)

    def replay_end_of_transaction(
        self, producer_id: int, is_commit: bool, offset: int = -1, *, is_replicated: bool = True
    ) -> None:
        """Apply a marker: offsets of a committed transaction become visible where no later record already is."""
        table = self.pending.pop(producer_id, None)
        if table is None:
            return
        for group_id, topic, partition, committed in table.items():
            if not is_replicated:
                self._keep_state(group_id, topic, partition, offset)
            producers = self._open[group_id][topic, partition]
            producers.discard(producer_id)
            if not producers:
                del self._open[group_id][topic, partition]
                self._drop_if_closed(group_id)
            if is_commit:
                current = self.visible.get(group_id, topic, partition)
                if current is None or committed.record_offset > current.record_offset:
                    self.visible.put(group_id, topic, partition, committed)

    def replicated_up_to(self, end_offset: int) -> None:
        """Every record below `end_offset` is replicated."""
        keys = self._unreplicated_keys
        while keys and keys[0][0] < end_offset:
            _, group_id, key = keys.popleft()
            of_group = self._unreplicated[group_id]
            changes = of_group[key]
            changes.popleft()
            if not changes:
                del of_group[key]
                if not of_group:
                    del self._unreplicated[group_id]

    def _keep_state(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """Keep what clients get until the record at `offset` is replicated."""
        change = UnreplicatedChange(
            offset, self.visible.get(group_id, topic, partition), self.is_pending(group_id, topic, partition)
        )
        key = (topic, partition)
        self._unreplicated.setdefault(group_id, {}).setdefault(key, deque()).append(change)
        self._unreplicated_keys.append((offset, group_id, key))

    def _drop_if_closed(self, group_id: str) -> None:
        if not self._open.get(group_id, True):
            del self._open[group_id]

    # -- state as of the high watermark, for clients -------------------------------------------------------------

    def replicated(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset that is replicated."""
        changes = self._unreplicated.get(group_id, {}).get((topic, partition))
        return changes[0].visible if changes else self.visible.get(group_id, topic, partition)

    def copy_of_group(self, group_id: str) -> "OffsetStore":
        """Copy the offsets of one group that clients get now. A transaction's offsets are seen together."""
        copied = OffsetStore()
        visible = self.visible.of_group(group_id)
        copied.visible.groups[group_id] = {topic: partitions.copy() for topic, partitions in visible.items()}
        copied._open[group_id] = self._open.get(group_id, {}).copy()
        unreplicated = self._unreplicated.get(group_id, {})
        copied._unreplicated[group_id] = {key: changes.copy() for key, changes in unreplicated.items()}
        return copied

    def replicated_of_group(self, group_id: str) -> dict[str, list[int]]:
        """Topics and partitions with a committed offset that is replicated."""
        found = {topic: dict.fromkeys(partitions) for topic, partitions in self.visible.of_group(group_id).items()}
        for topic, partition in self._unreplicated.get(group_id, ()):
            partitions = found.setdefault(topic, {})
            partitions.pop(partition, None)
            if self.replicated(group_id, topic, partition) is not None:
                partitions[partition] = None
        return {topic: list(partitions) for topic, partitions in found.items() if partitions}

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction, or one whose end is not replicated, holds an offset for the partition."""
        changes = self._unreplicated.get(group_id, {}).get((topic, partition), ())
        return self.is_pending(group_id, topic, partition) or any(change.is_pending for change in changes)

    # -- state as of the end of the log, for decisions -----------------------------------------------------------

    def is_held(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether there is anything to delete for the partition, or a deletion that is not replicated yet.

        Deleting once more makes the second request wait as long as the first.
        """
        return (
            self.visible.get(group_id, topic, partition) is not None
            or self.is_pending(group_id, topic, partition)
            or (topic, partition) in self._unreplicated.get(group_id, {})
        )

    def held_of_group(self, group_id: str) -> list[tuple[str, int]]:
        """Topic and partition of everything there is to delete of a group, each once."""
        held = {
            (topic, partition): None
            for topic, partitions in self.visible.of_group(group_id).items()
            for partition in partitions
        }
        return list(held | dict.fromkeys(self._open.get(group_id, ())))

    def group_ids(self) -> dict[str, None]:
        """The groups that have offsets, pending ones included."""
        return dict.fromkeys(self.visible.groups) | dict.fromkeys(self._open)

    def count(self, group_id: str) -> int:
        """The number of a group's offsets, pending ones included."""
        return sum(map(len, self.visible.of_group(group_id).values())) + len(self._open.get(group_id, ()))

    def pending_of_group(self, group_id: str) -> list[tuple[str, int]]:
        """Topic and partition of everything that open transactions hold of a group, each once."""
        return list(self._open.get(group_id, ()))

    def all_of_partition(self, group_id: str, topic: str, partition: int) -> list[CommittedOffset]:
        """The offsets that a tombstone would delete: the committed one and those of open transactions."""
        producer_ids = self._open.get(group_id, {}).get((topic, partition), ())
        found = [self.pending[producer_id].get(group_id, topic, partition) for producer_id in producer_ids]
        found.append(self.visible.get(group_id, topic, partition))
        return [offset for offset in found if offset is not None]

    def has_pending(self, group_id: str) -> bool:
        """Return whether open transactions hold offsets of the group."""
        return group_id in self._open

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction holds an offset for the partition."""
        return (topic, partition) in self._open.get(group_id, {})


def _counts_from_commit(group: Group) -> bool:
    """Return whether an offset's time runs from its commit; else it runs from when the group became empty."""
    return group.protocol_type is None or (
        group.state is STABLE and group.is_consumer_type and group.subscribed_topics is not None
    )


def can_expire(group: Group) -> bool:
    """Return whether any offset of the group may expire in its present state, and the group with them."""
    return group.state is EMPTY or _counts_from_commit(group)


def expired_partitions(
    store: OffsetStore, group: Group, partitions: Iterable[tuple[str, int]], retention_ms: int, now_ms: int
) -> list[tuple[str, int]]:
    """Those of the partitions whose offsets' time is over. The group must be one that `can_expire`."""
    counts_from_commit = _counts_from_commit(group)
    expired: list[tuple[str, int]] = []
    for topic, partition in partitions:
        offset = store.visible.get(group.group_id, topic, partition)
        if offset is None or group.is_subscribed_to(topic):
            continue
        since_ms = offset.value.commit_timestamp
        if not counts_from_commit and group.state_since_ms is not None:
            since_ms = group.state_since_ms
        explicit_ms = offset.value.expire_timestamp
        is_over = now_ms >= explicit_ms if explicit_ms != -1 else now_ms - since_ms >= retention_ms
        if is_over and not store.is_pending(group.group_id, topic, partition):
            expired.append((topic, partition))
    return expired
