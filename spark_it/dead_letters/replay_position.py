"""The position of a replay in the dead-letter topic, in a file beside the checkpoint.

The group's offset takes precedence; it is committed in the transaction that writes the records. But nothing commits it
again between two replays, so it may have expired by the next one, and all dead letters would be replayed again.

The file is JSON: `{"version": 2, "topics": {"dlq": {"id": "Zk3...", "offsets": {"0": 5}}}}`. The id distinguishes the
topic from a later one of the same name. Version 1 was `{"dlq": {"0": 5}}`.
"""

import json
from pathlib import Path
from typing import NamedTuple

from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.state.checkpoint import topic_offsets
from odradek.spark_it.state.files import write_atomically

FILE = "replayed.json"
VERSION = 2


class ReplayPositionError(Exception):
    """A file that cannot be read; `str()` names it."""


class _Replayed(NamedTuple):
    """The replay of one topic. `id` is empty if it is not known."""

    id: str
    offsets: dict[TopicPartition, int]

    def is_of(self, topic_id: str) -> bool:
        return not self.id or not topic_id or self.id == topic_id


def read_position(state_folder: Path, topic: str, topic_id: str) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition is replayed; nothing of another topic of the name.

    `topic_id` is empty if the cluster has no ids. Raises ReplayPositionError, OSError.
    """
    found = _read(state_folder).get(topic)
    return {} if found is None or not found.is_of(topic_id) else found.offsets


def write_position(state_folder: Path, at: TopicPartition, topic_id: str, offset: int) -> None:
    """Add the offset of a partition to what is there. Raises ReplayPositionError, OSError."""
    topic, topics = at[0], _read(state_folder)
    before = topics.get(topic)
    if before is None or not before.is_of(topic_id):
        before = _Replayed(topic_id, {})
    topics[topic] = _Replayed(topic_id or before.id, before.offsets | {at: offset})
    shown = {
        name: {"id": one.id, "offsets": {str(partition): end for (_, partition), end in sorted(one.offsets.items())}}
        for name, one in sorted(topics.items())
    }
    write_atomically(state_folder / FILE, json.dumps({"version": VERSION, "topics": shown}) + "\n")


def _read(state_folder: Path) -> dict[str, _Replayed]:
    path = state_folder / FILE
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        read = json.loads(text)
        if "version" in read and not isinstance(read["version"], dict):
            if read["version"] != VERSION:
                raise ReplayPositionError(f"{path} is of version {read['version']}; this is version {VERSION}")
            return {
                topic: _Replayed(one["id"], topic_offsets(json.dumps({topic: one["offsets"]})))
                for topic, one in read["topics"].items()
            }
        return {topic: _Replayed("", topic_offsets(json.dumps({topic: offsets}))) for topic, offsets in read.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ReplayPositionError(
            f"{path} is damaged; put it back from a copy, or delete it to begin at the start"
        ) from None
