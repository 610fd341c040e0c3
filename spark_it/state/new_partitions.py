"""Admission of new partitions whose log starts at an offset above 0.

Spark reports data loss, and stops, if a partition appears whose first records are deleted. But the pipeline could never
have read those records: a topic that starts to match a pattern may be years old, or a copy of another topic. Such a
partition must start at its log start offset. So the partition is added, with that offset, to the offsets of the
previous batch (or to the initial offsets of its source, if there is no previous batch), and the batch is repeated.
Records that are deleted afterwards are reported as data loss.
Source: Spark 4.0, KafkaOffsetReaderBase.getOffsetRangesFromResolvedOffsets, HDFSMetadataLog,
KafkaSourceInitialOffsetWriter.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from odradek.spark_it.interfaces.kafka_types import Offsets, TopicPartition
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import parse_topic_offsets
from odradek.spark_it.state.files import sync_folder, write_atomically

_ADDED = re.compile(r"Added partition \S+ starts from \d+ instead of 0")


def is_refused(error: BaseException) -> bool:
    """Return whether Spark failed because the log of a new partition starts at an offset above 0."""
    return _ADDED.search(str(error)) is not None


def admit(folder: Path, cluster: ClusterRequests, committing: str | None) -> Offsets:
    """Let each partition that is new in the planned batch start at its log start offset.

    Return the start offsets of these partitions. The query must not run. With offset transactions `committing` is the
    group that has the markers of partitions. Raises CheckpointError, ClusterError, OSError.
    """
    existing = checkpoint.read(folder)
    if existing is None or existing.planned is None:
        return {}
    before = existing.planned.id - 1
    old_texts = (
        _read_initial_offsets(folder, existing.planned) if before < 0 else checkpoint.read_batch(folder, before).offsets
    )
    new: dict[int, Offsets] = {}
    for source, (old_text, text) in enumerate(zip(old_texts, existing.planned.offsets, strict=True)):
        old, planned = _parse_offsets(old_text), _parse_offsets(text)
        if old is not None and planned is not None:
            new[source] = {at: end for at, end in planned.items() if at not in old}
    ends = {at: end for offsets in new.values() for at, end in offsets.items()}
    if not ends:
        return {}
    # Records that were planned and then deleted are lost; Spark reports them in the next batch.
    starts = {at: min(first, ends[at]) for at, first in cluster.fetch_earliest(ends).items()}
    if committing is not None:
        markers = cluster.fetch_committed(committing, starts)
        # Committed before the checkpoint changes, because the sink refuses a partition of the checkpoint without a
        # marker.
        cluster.commit(committing, {at: start for at, start in starts.items() if markers.get(at, -1) < start})
    added = {source: {at: starts[at] for at in offsets} for source, offsets in new.items() if offsets}
    if before < 0:
        for source, offsets in added.items():
            _add_offsets(folder / "sources" / str(source), 0, {0: offsets}, lines_before=1)
    else:
        _add_offsets(folder / "offsets", before, added, lines_before=2)
    return starts


def _read_initial_offsets(folder: Path, first: checkpoint.PlannedBatch) -> list[str | None]:
    """Return the initial offsets of each source as JSON; None for a source without them. Their files have a line with
    the version and a line of JSON."""
    logs = list((folder / "sources").glob("*"))
    if len(logs) < len(first.offsets) and len(set(first.offsets)) < len(first.offsets):
        # A source that a query reads twice has two lines in `offsets` and one file of initial offsets, so the index of
        # a line does not identify the file.
        return [None] * len(first.offsets)
    texts: list[str | None] = []
    for source in range(len(first.offsets)):
        try:
            texts.append((folder / "sources" / str(source) / "0").read_text("utf-8").partition("\n")[2])
        except (FileNotFoundError, UnicodeDecodeError):
            texts.append(None)
    return texts


def _parse_offsets(text: str | None) -> Offsets | None:
    """Parse the offsets of a source; None if it does not read topics."""
    try:
        return None if text is None else parse_topic_offsets(text)
    except ValueError:
        return None


def _add_offsets(log: Path, batch_id: int, added: Mapping[int, Offsets], *, lines_before: int) -> None:
    """Add offsets to a batch's file in `log`, by the index of their line after the first `lines_before` lines."""
    path = log / str(batch_id)
    lines = path.read_text("utf-8").split("\n")
    for source, offsets in added.items():
        at = lines_before + source
        lines[at] = _format_offsets(parse_topic_offsets(lines[at]) | offsets)
    # Hadoop verifies a checksum only if its file exists.
    (log / f".{batch_id}.crc").unlink(missing_ok=True)
    sync_folder(log)
    write_atomically(path, "\n".join(lines))


def _format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic[topic][str(partition)] = offset
    return json.dumps(by_topic, separators=(",", ":"))
