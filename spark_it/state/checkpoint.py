"""Reader of Spark's checkpoint of a streaming query; it does not need Spark.

`offsets/N` plans batch N: it records the end offset of each source. `commits/N` records that the batch is completed.
Both are written atomically and only once: a line with the version, a line with the batch's metadata as JSON, and in
`offsets/N` a line for each source. Source: Spark 4.0, OffsetSeqLog, CommitLog, HDFSMetadataLog, KafkaSourceOffset.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.state.files import sync_folder

_OFFSETS_VERSIONS = ("v1",)
_COMMITS_VERSIONS = ("v1", "v2")
_NO_OFFSET = "-"


class CheckpointError(Exception):
    """A checkpoint is not in Spark's format; `str()` names the file."""


@dataclass(frozen=True)
class PlannedBatch:
    """A planned batch.

    `offsets` has the JSON of each source, in the order of the query; None for a source that had no data yet.
    `started_ms` is the batch's current_timestamp.
    """

    id: int
    offsets: tuple[str | None, ...]
    started_ms: int

    def parse_by_source(self) -> list[dict[TopicPartition, int]]:
        """Return the end offsets of the batch in each source that reads topics. A checkpoint does not name its
        sources.
        """
        offsets = []
        for text in self.offsets:
            if text is not None:
                with contextlib.suppress(ValueError):  # offsets of a source other than a topic
                    offsets.append(parse_topic_offsets(text))
        return offsets

    def parse_topic_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offsets of the batch; the lowest if several sources read a partition."""
        return merge_lowest(self.parse_by_source())


def merge_lowest(each: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """Return the lowest offset of each partition."""
    result: dict[TopicPartition, int] = {}
    for offsets in each:
        for at, offset in offsets.items():
            result[at] = min(offset, result.get(at, offset))
    return result


def parse_topic_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the offsets in the JSON of Spark's Kafka source: `{"topic": {"0": 5}}`. Raises ValueError for anything
    else.
    """
    topics = json.loads(text)
    if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
        raise ValueError(text)
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of a query. `planned` is the newest batch with offsets, `done` the newest committed."""

    folder: Path
    query_id: str
    planned: PlannedBatch | None
    done: PlannedBatch | None

    @property
    def is_in_batch(self) -> bool:
        """True if a batch is planned and not completed. The query repeats this batch when it starts."""
        return self.planned is not None and (self.done is None or self.planned.id > self.done.id)


def read(folder: Path) -> Checkpoint | None:
    """Read the checkpoint in a folder; None if no query has begun there. Raises CheckpointError, OSError."""
    metadata = folder / "metadata"
    try:
        text = metadata.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    query_id = _parse_json(metadata, text).get("id")
    if not isinstance(query_id, str):
        raise CheckpointError(f"{metadata} has no id")
    # A running query plans a batch after it commits the previous one. With this order of reads a commit is never seen
    # without its plan.
    done = find_newest(folder / "commits")
    planned = find_newest(folder / "offsets")
    if done is not None:
        _read_lines(folder / "commits" / str(done), _COMMITS_VERSIONS)
        if planned is None or planned < done:
            raise CheckpointError(f"{folder} records batch {done} as completed, but has no plan for it")
    return Checkpoint(
        folder=folder,
        query_id=query_id,
        planned=None if planned is None else read_batch(folder, planned),
        # Spark retains the offsets of the last hundred batches.
        done=None if done is None else read_batch(folder, done),
    )


def read_batch(folder: Path, batch_id: int) -> PlannedBatch:
    """Read a planned batch by its number. Raises CheckpointError if it is missing or incomplete, OSError."""
    path = folder / "offsets" / str(batch_id)
    lines = _read_lines(path, _OFFSETS_VERSIONS)
    if not lines:
        raise CheckpointError(f"{path} is truncated")
    batch_metadata = _parse_json(path, lines[0]) if lines[0] else {}
    try:
        return PlannedBatch(
            id=batch_id,
            offsets=tuple(None if line == _NO_OFFSET else line for line in lines[1:]),
            started_ms=int(batch_metadata.get("batchTimestampMs", 0)),
        )
    except (TypeError, ValueError):
        raise CheckpointError(f"{path} is not in Spark's format") from None


def find_newest(log: Path) -> int | None:
    """Return the largest number among the files of `offsets` or `commits`; None if there is none."""
    try:
        return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=None)
    except FileNotFoundError:
        return None


def rewind(folder: Path) -> int:
    """Mark the newest batch as not completed, as after a crash between sink and checkpoint; return its number.

    The query must not run. Raises CheckpointError if no batch is completed, or if a batch is planned and not completed:
    Spark repeats that batch in any case.
    """
    existing = read(folder)
    if existing is None or existing.done is None:
        raise CheckpointError(f"{folder} has no completed batch")
    if existing.planned is not None and existing.is_in_batch:
        raise CheckpointError(
            f"batch {existing.planned.id} in {folder} is not completed; the next run repeats it without --rewind-last"
        )
    commits = folder / "commits"
    (commits / f".{existing.done.id}.crc").unlink(missing_ok=True)
    (commits / str(existing.done.id)).unlink()
    sync_folder(commits)
    return existing.done.id


def _read_lines(path: Path, versions: tuple[str, ...]) -> list[str]:
    """Check the version and return the lines after it."""
    try:
        version, _, rest = path.read_text("utf-8").partition("\n")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not in Spark's format") from None
    if version.strip() not in versions:
        raise CheckpointError(f"{path} has version {version.strip()[:20]!r}; supported: {' and '.join(versions)}")
    return rest.rstrip("\n").split("\n") if rest.strip() else []


def _parse_json(path: Path, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        raise CheckpointError(f"{path} is not in Spark's format") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path} is not in Spark's format")
    return parsed
