"""Spark's checkpoint of a streaming query, read without Spark.

`offsets/N` plans a batch: it records the end of each source. `commits/N` records that the batch is done. Both are
written whole and only once: a line with the version, a line of JSON about the batch, and in `offsets/N` a line for each
source. Source: Spark 4.0, OffsetSeqLog, CommitLog, HDFSMetadataLog, KafkaSourceOffset.
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
    """A checkpoint in another form than Spark's; `str()` names the file."""


@dataclass(frozen=True)
class PlannedBatch:
    """A planned batch.

    `offsets` has the JSON of each source, in the order of the query; None for a source that had nothing yet.
    `started_ms` is the batch's current_timestamp.
    """

    id: int
    offsets: tuple[str | None, ...]
    started_ms: int

    def by_source(self) -> list[dict[TopicPartition, int]]:
        """Return the end offsets of the batch in each source that reads topics. A checkpoint does not name its
        sources.
        """
        found = []
        for text in self.offsets:
            if text is not None:
                with contextlib.suppress(ValueError):  # of a source that is no topic
                    found.append(topic_offsets(text))
        return found

    def topic_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offsets of the batch; the lowest where several sources read a partition."""
        return lowest(self.by_source())


def lowest(each: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """Return the lowest offset of each partition."""
    found: dict[TopicPartition, int] = {}
    for offsets in each:
        for at, offset in offsets.items():
            found[at] = min(offset, found.get(at, offset))
    return found


def topic_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the offsets in the JSON of Spark's Kafka source: `{"topic": {"0": 5}}`. Raises ValueError for anything
    else.
    """
    read = json.loads(text)
    if not isinstance(read, dict) or not all(isinstance(partitions, dict) for partitions in read.values()):
        raise ValueError(text)
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in read.items()
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
        """True if a batch has begun and is not done: it is repeated when the query starts."""
        return self.planned is not None and (self.done is None or self.planned.id > self.done.id)


def read(folder: Path) -> Checkpoint | None:
    """Read the checkpoint in a folder; None if no query has begun there. Raises CheckpointError, OSError."""
    metadata = folder / "metadata"
    try:
        text = metadata.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    query_id = _json(metadata, text).get("id")
    if not isinstance(query_id, str):
        raise CheckpointError(f"{metadata} has no id")
    # A query that runs plans the next batch after it is done with one: what is done is looked up first.
    done = newest(folder / "commits")
    planned = newest(folder / "offsets")
    if done is not None:
        _lines(folder / "commits" / str(done), _COMMITS_VERSIONS)
        if planned is None or planned < done:
            raise CheckpointError(f"{folder} has batch {done} done, which was never planned")
    return Checkpoint(
        folder=folder,
        query_id=query_id,
        planned=None if planned is None else read_batch(folder, planned),
        # Spark keeps the offsets of the last hundred batches, so those of the newest done are there.
        done=None if done is None else read_batch(folder, done),
    )


def read_batch(folder: Path, batch_id: int) -> PlannedBatch:
    """Read a planned batch by its number. Raises CheckpointError if it is missing or incomplete, OSError."""
    path = folder / "offsets" / str(batch_id)
    lines = _lines(path, _OFFSETS_VERSIONS)
    if not lines:
        raise CheckpointError(f"{path} is cut off")
    about = _json(path, lines[0]) if lines[0] else {}
    try:
        return PlannedBatch(
            id=batch_id,
            offsets=tuple(None if line == _NO_OFFSET else line for line in lines[1:]),
            started_ms=int(about.get("batchTimestampMs", 0)),
        )
    except (TypeError, ValueError):
        raise CheckpointError(f"{path} is not as Spark writes it") from None


def newest(log: Path) -> int | None:
    """Return the largest number among the files of `offsets` or `commits`; None if there is none."""
    try:
        return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=None)
    except FileNotFoundError:
        return None


def rewind(folder: Path) -> int:
    """Make the newest batch one that is not done, as after a crash between sink and checkpoint; return its number.

    The query must not run. Raises CheckpointError if no batch is done, or if one has begun: that one is repeated
    anyway, and Spark would repeat it alone.
    """
    found = read(folder)
    if found is None or found.done is None:
        raise CheckpointError(f"{folder} has no batch that is done")
    if found.planned is not None and found.is_in_batch:
        raise CheckpointError(f"batch {found.planned.id} in {folder} is not done; it will be repeated as it is")
    commits = folder / "commits"
    (commits / f".{found.done.id}.crc").unlink(missing_ok=True)
    (commits / str(found.done.id)).unlink()
    sync_folder(commits)
    return found.done.id


def _lines(path: Path, versions: tuple[str, ...]) -> list[str]:
    """The lines after the one with the version."""
    try:
        version, _, rest = path.read_text("utf-8").partition("\n")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not as Spark writes it") from None
    if version.strip() not in versions:
        raise CheckpointError(f"{path} is of version {version.strip()[:20]!r}, not {' or '.join(versions)}")
    return rest.rstrip("\n").split("\n") if rest.strip() else []


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except json.JSONDecodeError:
        raise CheckpointError(f"{path} is not as Spark writes it") from None
    if not isinstance(read, dict):
        raise CheckpointError(f"{path} is not as Spark writes it")
    return read
