"""The persistent state of a shard as read from its log by plain rules, without the coordinators' own replay."""

from odradek.coordinator.groups.records import (
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.coordinator.tests.driver import GroupDriver, Marker

Partition = tuple[str, str, int]
"""Group, topic, partition."""


class GroupLogContents:
    """Groups with their last record (None if they have offsets only), and committed and pending offsets."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupMetadataValue | None] = {}
        self.visible: dict[Partition, tuple[int, OffsetCommitValue]] = {}
        self.pending: dict[int, dict[Partition, tuple[int, OffsetCommitValue]]] = {}


def read_group_log(driver: GroupDriver) -> GroupLogContents:
    """The contents of the whole log of a group shard."""
    contents = GroupLogContents()
    for offset, entry in enumerate(driver.log):
        if isinstance(entry, Marker):
            _end_transaction(contents, entry)
            continue
        key = read_key(entry.key)
        if isinstance(key, OffsetCommitKey):
            _take_offset(contents, (key.group, key.topic, key.partition), entry.value, offset, driver.producers)
        elif entry.value is None:
            contents.groups.pop(key.group, None)
        else:
            contents.groups[key.group] = read_group_metadata_value(entry.value)
    return contents


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
