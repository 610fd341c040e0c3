"""How far the dead-letter topic is replayed, in a file beside the checkpoint.

The group's offset goes before it, and says it in the transaction that writes the records. But nobody commits that again
between two replays, so Kafka may have forgotten it by the next one, and all dead letters would go back once more.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from odradek.spark_it.checkpoint import TopicPartition, topic_offsets
from odradek.spark_it.state_files import write_atomically

FILE = "replayed.json"


class ReplayedError(Exception):
    """A file that cannot be read; `str()` names it."""


def read_replayed(state_folder: Path) -> dict[TopicPartition, int]:
    """Up to where each partition is replayed. Raises ReplayedError, OSError."""
    path = state_folder / FILE
    try:
        return topic_offsets(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, TypeError):
        raise ReplayedError(f"{path} is damaged; put it back from a copy, or delete it to begin at the start") from None


def write_replayed(state_folder: Path, replayed: Mapping[TopicPartition, int]) -> None:
    """Adds to what is there. Raises ReplayedError, OSError."""
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted((read_replayed(state_folder) | dict(replayed)).items()):
        by_topic[topic][str(partition)] = offset
    write_atomically(state_folder / FILE, json.dumps(by_topic) + "\n")
