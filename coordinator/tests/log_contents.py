"""The persistent state of a shard as read from its log by plain rules, without the coordinators' own replay."""

from odradek.coordinator.groups.records import (
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.coordinator.result import CoordinatorRecord
from odradek.coordinator.tests.driver import GroupDriver, Marker

Partition = tuple[str, str, int]
"""Group, topic, partition."""


class GroupLogContents:
    """Groups with their last record (None if they have offsets only), and committed and pending offsets."""

    def __init__(self) -> None:
        self._entries: list[CoordinatorRecord | Marker] = []
        self._producers: dict[int, int] = {}
        self._clear()

    def _clear(self) -> None:
        self.groups: dict[str, GroupMetadataValue | None] = {}
        self.visible: dict[Partition, tuple[int, OffsetCommitValue]] = {}
        self.pending: dict[int, dict[Partition, tuple[int, OffsetCommitValue]]] = {}

    def read(self, driver: GroupDriver) -> None:
        """Read the whole log of a group shard: entries added since the last time, or all after a truncation."""
        count = len(self._entries)
        known = {offset: producer for offset, producer in driver.producers.items() if offset < count}
        if driver.log[:count] != self._entries or known != self._producers:
            self._clear()
            count = 0
        for offset, entry in enumerate(driver.log[count:], count):
            self._take(entry, offset, driver.producers)
        self._entries, self._producers = list(driver.log), dict(driver.producers)

    def _take(self, entry: CoordinatorRecord | Marker, offset: int, producers: dict[int, int]) -> None:
        if isinstance(entry, Marker):
            _end_transaction(self, entry)
            return
        key = read_key(entry.key)
        if isinstance(key, OffsetCommitKey):
            _take_offset(self, (key.group, key.topic, key.partition), entry.value, offset, producers)
        elif entry.value is None:
            self.groups.pop(key.group, None)
        else:
            self.groups[key.group] = read_group_metadata_value(entry.value)


def _take_offset(
    contents: GroupLogContents, partition: Partition, data: bytes | None, offset: int, producers: dict[int, int]
) -> None:
    if data is None:
        contents.visible.pop(partition, None)
        for held in contents.pending.values():
            held.pop(partition, None)
        return
    contents.groups.setdefault(partition[0])
    table = contents.visible
    if offset in producers:
        table = contents.pending.setdefault(producers[offset], {})
    table[partition] = (offset, read_offset_commit_value(data))


def _end_transaction(contents: GroupLogContents, marker: Marker) -> None:
    for partition, held in contents.pending.pop(marker.producer_id, {}).items():
        current = contents.visible.get(partition)
        if marker.is_commit and (current is None or current[0] < held[0]):
            contents.visible[partition] = held
