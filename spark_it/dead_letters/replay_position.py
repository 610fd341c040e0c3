"""The position of replays in the dead-letter topic, in a file next to the checkpoint.

The group's offset takes precedence; it is committed in the transaction that writes the records. But it is not renewed
between two replays, so it may expire before the next one. Then without this file all dead letters would be replayed
again.

The file is JSON: `{"version": 2, "topics": {"dlq": {"id": "Zk3...", "offsets": {"0": 5}}}}`. The id distinguishes the
topic from a later one of the same name. Version 1, `{"dlq": {"0": 5}}`, is also read.
"""

import json
from pathlib import Path
from typing import NamedTuple

from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.state.checkpoint import parse_topic_offsets
from odradek.spark_it.state.files import write_atomically

FILE = "replayed.json"
VERSION = 2


class ReplayPositionError(Exception):
    """The file cannot be read; `str()` names it."""


class _TopicPosition(NamedTuple):
    """The position in one topic. `id` is empty for a topic without id."""

    id: str
    offsets: dict[TopicPartition, int]

    def has_id(self, topic_id: str) -> bool:
        return not self.id or not topic_id or self.id == topic_id


def read_position(state_folder: Path, topic: str, topic_id: str) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition is replayed; none for another topic of the same name.

    `topic_id` is empty if the cluster has no ids. Raises ReplayPositionError, OSError.
    """
    replayed = _read_topics(state_folder).get(topic)
    return {} if replayed is None or not replayed.has_id(topic_id) else replayed.offsets


def write_position(state_folder: Path, at: TopicPartition, topic_id: str, offset: int) -> None:
    """Store the offset of a partition. Raises ReplayPositionError, OSError."""
    topic, topics = at[0], _read_topics(state_folder)
    previous = topics.get(topic)
    if previous is None or not previous.has_id(topic_id):
        previous = _TopicPosition(topic_id, {})
    topics[topic] = _TopicPosition(topic_id or previous.id, previous.offsets | {at: offset})
    content = {
        name: {"id": one.id, "offsets": {str(partition): end for (_, partition), end in sorted(one.offsets.items())}}
        for name, one in sorted(topics.items())
    }
    write_atomically(state_folder / FILE, json.dumps({"version": VERSION, "topics": content}) + "\n")


def _read_topics(state_folder: Path) -> dict[str, _TopicPosition]:
    path = state_folder / FILE
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        parsed = json.loads(text)
        if "version" in parsed and not isinstance(parsed["version"], dict):
            if parsed["version"] != VERSION:
                raise ReplayPositionError(
                    f"{path} has version {parsed['version']}; this release supports versions 1 and {VERSION}; use "
                    "the release that wrote it, or delete it to replay from the beginning"
                )
            return {
                topic: _TopicPosition(one["id"], parse_topic_offsets(json.dumps({topic: one["offsets"]})))
                for topic, one in parsed["topics"].items()
            }
        return {
            topic: _TopicPosition("", parse_topic_offsets(json.dumps({topic: offsets})))
            for topic, offsets in parsed.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ReplayPositionError(
            f"{path} is damaged; restore it from a backup, or delete it to replay from the beginning"
        ) from None
