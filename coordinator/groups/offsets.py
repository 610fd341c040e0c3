"""Committed offsets of one shard, and their expiry.

Expiry follows KIP-211: an offset's retention starts at its commit or when its group becomes empty, unless the commit
contains a retention time (OffsetCommit versions 2 to 4).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from odradek.coordinator.groups.classic.group import EMPTY, STABLE, Group
from odradek.coordinator.groups.records import OffsetCommitValue

NO_PRODUCER_ID: Final = -1


class CommittedOffset(NamedTuple):
    """A committed offset, and the offset of its record in the log (-1 if unknown)."""

    record_offset: int
    value: OffsetCommitValue


Partitions = dict[int, CommittedOffset]
Topics = dict[str, Partitions]


class OffsetTable:
    """Committed offsets by group, topic and partition. Empty inner dictionaries are removed."""

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
        """Remove an offset if there is one."""
        topics = self.groups.get(group_id)
        partitions = topics.get(topic) if topics else None
        if topics is None or partitions is None or partitions.pop(partition, None) is None:
            return
        if not partitions:
            del topics[topic]
            if not topics:
                del self.groups[group_id]

    def of_group(self, group_id: str) -> Topics:
        """Return the group's offsets, which the caller must not change."""
        return self.groups.get(group_id, {})

    def partitions_of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Yield topic and partition of the group's offsets, which may change meanwhile; each topic is read in turn."""
        for topic in list(self.of_group(group_id)):
            for partition in list(self.of_group(group_id).get(topic, ())):
                yield topic, partition

    def discard(self) -> Iterator[None]:
        """Remove the offsets of one group after the other."""
        while self.groups:
            self.groups.popitem()
            yield

    def items(self) -> Iterator[tuple[str, str, int, CommittedOffset]]:
        """Yield group, topic, partition and offset of all offsets."""
        for group_id, topics in self.groups.items():
            for topic, partitions in topics.items():
                for partition, offset in partitions.items():
                    yield group_id, topic, partition, offset


class UnreplicatedChange(NamedTuple):
    """An applied change whose record is above the high watermark, with the state of its partition before the change."""

    record_offset: int
    visible: CommittedOffset | None
    is_pending: bool


class OffsetStore:
    """Visible offsets, and pending offsets of open transactions: the state at the end of the log.

    Only the replay of records changes it. Records are replayed when they are appended, so that later requests are
    handled on that state; clients get the state at the high watermark (`replicated`, `is_unstable`).
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
        """Apply a record of a committed offset. A tombstone also removes the pending offsets of the partition."""
        if not is_replicated:
            self._save_state(group_id, topic, partition, offset)
        if value is None:
            self.visible.remove(group_id, topic, partition)
            for open_producer_id in self._open.get(group_id, {}).pop((topic, partition), ()):
                self.pending[open_producer_id].remove(group_id, topic, partition)
            self._remove_if_empty(group_id)
        elif producer_id == NO_PRODUCER_ID:
            self.visible.put(group_id, topic, partition, CommittedOffset(offset, value))
        else:
            table = self.pending.setdefault(producer_id, OffsetTable())
            table.put(group_id, topic, partition, CommittedOffset(offset, value))
            self._open.setdefault(group_id, {}).setdefault((topic, partition), set()).add(producer_id)

    def replay_end_of_transaction(
        self, producer_id: int, is_commit: bool, offset: int = -1, *, is_replicated: bool = True
    ) -> None:
        """Apply a marker. Offsets of a committed transaction become visible unless a later offset is visible."""
        table = self.pending.pop(producer_id, None)
        if table is None:
            return
        # Without calls for each offset: a transaction may have 10,000.
        for group_id, topics in table.groups.items():
            open_of_group = self._open[group_id]
            for topic, partitions in topics.items():
                visible = self.visible.groups.get(group_id, {}).get(topic, {})
                if not is_replicated:
                    self._save_pending(group_id, topic, partitions, visible, offset)
                for partition in partitions:
                    producers = open_of_group[topic, partition]
                    producers.discard(producer_id)
                    if not producers:
                        del open_of_group[topic, partition]
                if is_commit:
                    later = {
                        partition: committed
                        for partition, committed in partitions.items()
                        if partition not in visible or committed.record_offset > visible[partition].record_offset
                    }
                    if later:
                        self.visible.groups.setdefault(group_id, {}).setdefault(topic, {}).update(later)
            self._remove_if_empty(group_id)

    def _save_pending(
        self, group_id: str, topic: str, partitions: Iterable[int], visible: Partitions, offset: int
    ) -> None:
        """Save the states of partitions that have pending offsets, as `_save_state` does."""
        of_group = self._unreplicated.setdefault(group_id, {})
        for partition in partitions:
            key = (topic, partition)
            change = UnreplicatedChange(offset, visible.get(partition), True)
            if key in of_group:
                of_group[key].append(change)
            else:
                of_group[key] = deque((change,))
            self._unreplicated_keys.append((offset, group_id, key))

    def replicated_up_to(self, end_offset: int) -> None:
        """Discard the saved states of records below `end_offset`, which are replicated."""
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

    def _save_state(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """Save the state that clients get until the record at `offset` is replicated."""
        change = UnreplicatedChange(
            offset, self.visible.get(group_id, topic, partition), self.is_pending(group_id, topic, partition)
        )
        key = (topic, partition)
        self._unreplicated.setdefault(group_id, {}).setdefault(key, deque()).append(change)
        self._unreplicated_keys.append((offset, group_id, key))

    def _remove_if_empty(self, group_id: str) -> None:
        if not self._open.get(group_id, True):
            del self._open[group_id]

    # -- state at the high watermark, for clients ----------------------------------------------------------------

    def replicated(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return the committed offset at the high watermark."""
        changes = self._unreplicated.get(group_id, {}).get((topic, partition))
        return changes[0].visible if changes else self.visible.get(group_id, topic, partition)

    def copy_of_group(self, group_id: str) -> "OffsetStore":
        """Copy the offsets of one group, so that a fetch in steps returns all or none of a transaction's offsets."""
        copied = OffsetStore()
        visible = self.visible.of_group(group_id)
        copied.visible.groups[group_id] = {topic: partitions.copy() for topic, partitions in visible.items()}
        copied._open[group_id] = self._open.get(group_id, {}).copy()
        unreplicated = self._unreplicated.get(group_id, {})
        copied._unreplicated[group_id] = {key: changes.copy() for key, changes in unreplicated.items()}
        return copied

    def replicated_of_group(self, group_id: str) -> dict[str, list[int]]:
        """Return the partitions, by topic, that have a committed offset at the high watermark."""
        committed = {topic: dict.fromkeys(partitions) for topic, partitions in self.visible.of_group(group_id).items()}
        for topic, partition in self._unreplicated.get(group_id, ()):
            partitions = committed.setdefault(topic, {})
            partitions.pop(partition, None)
            if self.replicated(group_id, topic, partition) is not None:
                partitions[partition] = None
        return {topic: list(partitions) for topic, partitions in committed.items() if partitions}

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether a transaction without a replicated marker has an offset of the partition."""
        changes = self._unreplicated.get(group_id, {}).get((topic, partition), ())
        return self.is_pending(group_id, topic, partition) or any(change.is_pending for change in changes)

    # -- state at the end of the log, for requests that write ------------------------------------------------------

    def needs_tombstone(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether the partition has an offset to delete, or a change that is not replicated yet.

        In the second case the tombstone changes nothing, but the response waits for replication.
        """
        return (
            self.visible.get(group_id, topic, partition) is not None
            or self.is_pending(group_id, topic, partition)
            or (topic, partition) in self._unreplicated.get(group_id, {})
        )

    def all_of_group(self, group_id: str) -> list[tuple[str, int]]:
        """Return topic and partition of all visible and pending offsets of a group, each once."""
        visible = {
            (topic, partition): None
            for topic, partitions in self.visible.of_group(group_id).items()
            for partition in partitions
        }
        return list(visible | dict.fromkeys(self._open.get(group_id, ())))

    def group_ids(self) -> dict[str, None]:
        """Return the groups that have visible or pending offsets."""
        return dict.fromkeys(self.visible.groups) | dict.fromkeys(self._open)

    def count(self, group_id: str) -> int:
        """Return the number of a group's visible and pending offsets."""
        return sum(map(len, self.visible.of_group(group_id).values())) + len(self._open.get(group_id, ()))

    def pending_of_group(self, group_id: str) -> list[tuple[str, int]]:
        """Return topic and partition of the pending offsets of a group, each once."""
        return list(self._open.get(group_id, ()))

    def all_of_partition(self, group_id: str, topic: str, partition: int) -> list[CommittedOffset]:
        """Return the offsets that a tombstone would delete: the visible one and the pending ones."""
        producer_ids = self._open.get(group_id, {}).get((topic, partition), ())
        offsets = [self.pending[producer_id].get(group_id, topic, partition) for producer_id in producer_ids]
        offsets.append(self.visible.get(group_id, topic, partition))
        return [offset for offset in offsets if offset is not None]

    def has_pending(self, group_id: str) -> bool:
        """Return whether the group has pending offsets."""
        return group_id in self._open

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether the partition has a pending offset."""
        return (topic, partition) in self._open.get(group_id, {})


def _expires_from_commit(group: Group) -> bool:
    """Return whether the retention of an offset starts at its commit rather than when the group became empty."""
    return group.protocol_type is None or (
        group.state is STABLE and group.is_consumer_type and group.subscribed_topics is not None
    )


def can_expire(group: Group) -> bool:
    """Return whether the group's offsets, and then the group itself, may expire in its current state."""
    return group.state is EMPTY or _expires_from_commit(group)


def expired_partitions(
    store: OffsetStore, group: Group, partitions: Iterable[tuple[str, int]], retention_ms: int, now_ms: int
) -> list[tuple[str, int]]:
    """Return the partitions whose offsets are expired. The group must fulfil `can_expire`."""
    expires_from_commit = _expires_from_commit(group)
    expired: list[tuple[str, int]] = []
    for topic, partition in partitions:
        offset = store.visible.get(group.group_id, topic, partition)
        if offset is None or group.is_subscribed_to(topic):
            continue
        since_ms = offset.value.commit_timestamp
        if not expires_from_commit and group.state_since_ms is not None:
            since_ms = group.state_since_ms
        explicit_ms = offset.value.expire_timestamp
        is_expired = now_ms >= explicit_ms if explicit_ms != -1 else now_ms - since_ms >= retention_ms
        if is_expired and not store.is_pending(group.group_id, topic, partition):
            expired.append((topic, partition))
    return expired
