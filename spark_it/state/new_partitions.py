"""Admission of new partitions whose log does not begin at offset 0.

Spark reports data loss if a partition appears whose first records are missing, and stops. But the pipeline had no
chance to read those records: a topic that starts to match a pattern may be years old, or a copy of another. A source
begins with the first record that exists. So the partition is added to the offsets of the batch before, as if it had
been assigned with no record read, and the batch is repeated; to the initial offsets of its source if that is the first
batch. Records that are deleted after that are a loss.
Source: Spark 4.0, KafkaOffsetReaderBase.getOffsetRangesFromResolvedOffsets, HDFSMetadataLog,
KafkaSourceInitialOffsetWriter.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from odradek.spark_it.interfaces.kafka_types import Offsets, TopicPartition
from odradek.spark_it.kafka.group import Group
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import topic_offsets
from odradek.spark_it.state.files import sync_folder, write_atomically

_ADDED = re.compile(r"Added partition \S+ starts from \d+ instead of 0")


def is_refused(error: BaseException) -> bool:
    """Return whether Spark failed because the log of a new partition does not begin at 0."""
    return _ADDED.search(str(error)) is not None


def admit(folder: Path, group: Group, committing: str | None) -> Offsets:
    """Start the planned batch at the first record of each partition that is new in it.

    Return where those partitions start, nothing if there are none. The query must not run. With offset transactions
    `committing` is the group that has the markers of partitions. Raises CheckpointError, ClusterError, OSError.
    """
    found = checkpoint.read(folder)
    if found is None or found.planned is None:
        return {}
    before = found.planned.id - 1
    old_texts = _initial(folder, found.planned) if before < 0 else checkpoint.read_batch(folder, before).offsets
    new: dict[int, Offsets] = {}
    for source, (old_text, text) in enumerate(zip(old_texts, found.planned.offsets, strict=True)):
        old, planned = _offsets(old_text), _offsets(text)
        if old is not None and planned is not None:
            new[source] = {at: end for at, end in planned.items() if at not in old}
    ends = {at: end for offsets in new.values() for at, end in offsets.items()}
    if not ends:
        return {}
    # Records that were planned and then deleted are a loss, which the next batch finds.
    begins = {at: min(first, ends[at]) for at, first in group.earliest(ends).items()}
    if committing is not None:
        marked = group.committed(committing, begins)
        # First, since the sink refuses a partition that the checkpoint has and that is not marked.
        group.commit(committing, {at: begin for at, begin in begins.items() if marked.get(at, -1) < begin})
    added = {source: {at: begins[at] for at in offsets} for source, offsets in new.items() if offsets}
    if before < 0:
        for source, offsets in added.items():
            _add(folder / "sources" / str(source), 0, {0: offsets}, lines_before=1)
    else:
        _add(folder / "offsets", before, added, lines_before=2)
    return begins


def _initial(folder: Path, first: checkpoint.PlannedBatch) -> list[str | None]:
    """Return the initial offsets of each source, None for a source without: a line with the version, a line of JSON."""
    logs = list((folder / "sources").glob("*"))
    if len(logs) < len(first.offsets) and len(set(first.offsets)) < len(first.offsets):
        # A source that a query reads twice has two lines and one log, so lines and logs do not correspond.
        return [None] * len(first.offsets)
    texts: list[str | None] = []
    for source in range(len(first.offsets)):
        try:
            texts.append((folder / "sources" / str(source) / "0").read_text("utf-8").partition("\n")[2])
        except (FileNotFoundError, UnicodeDecodeError):
            texts.append(None)
    return texts


def _offsets(text: str | None) -> Offsets | None:
    """Parse the offsets of a source; None if it does not read topics."""
    try:
        return None if text is None else topic_offsets(text)
    except ValueError:
        return None


def _add(log: Path, batch_id: int, added: Mapping[int, Offsets], *, lines_before: int) -> None:
    """Add offsets to those in a file of a log, by the index of their line after the first `lines_before`."""
    path = log / str(batch_id)
    lines = path.read_text("utf-8").split("\n")
    for source, offsets in added.items():
        at = lines_before + source
        lines[at] = _text(topic_offsets(lines[at]) | offsets)
    # Hadoop verifies a checksum only if its file exists.
    (log / f".{batch_id}.crc").unlink(missing_ok=True)
    sync_folder(log)
    write_atomically(path, "\n".join(lines))


def _text(offsets: Mapping[TopicPartition, int]) -> str:
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic[topic][str(partition)] = offset
    return json.dumps(by_topic, separators=(",", ":"))
