"""Consistency check of a data directory with Kafka's DumpLogSegments.

The batches of the logs determine the indexes, transaction indexes and producer snapshots beside them: a small
replay of Kafka's rules derives these from the dump of the logs, and compares them with the dumps of the files.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from compat_tests.apache_kafka import tools

COMPACTED = re.compile(r"/__(consumer_offsets|transaction_state)-\d+/")

_BATCH = re.compile(
    r"baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+)"
    r" baseSequence: (?P<base_sequence>-?\d+) lastSequence: (?P<last_sequence>-?\d+)"
    r" producerId: (?P<producer_id>-?\d+) producerEpoch: (?P<epoch>-?\d+) partitionLeaderEpoch: (?P<leader_epoch>-?\d+)"
    r" isTransactional: (?P<transactional>\w+) isControl: (?P<control>\w+) .*? position: \d+"
    r" \w+: (?P<timestamp>-?\d+) .* isvalid: (?P<valid>\w+)"
)
_MARKER = re.compile(r"endTxnMarker: (COMMIT|ABORT) coordinatorEpoch: (-?\d+)")
_PAYLOAD = re.compile(r"^\| offset: (\d+) .*? payload: (.*)$")
_ABORTED = re.compile(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")
_SNAPSHOT = re.compile(
    r"producerId: (\d+) producerEpoch: (-?\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)"
    r" lastTimestamp: (-?\d+)"
    r"(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (-?\d+) offsetDelta: (-?\d+) timestamp: -?\d+)?"
)


class AbortedTransaction(NamedTuple):
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass
class ProducerState:
    """An entry of a producer snapshot; `batch` is first and last sequence, last offset, offset delta."""

    epoch: int
    coordinator_epoch: int = -1
    transaction_first_offset: int | None = None
    last_timestamp: int = -1
    batch: tuple[int, ...] | None = None


@dataclass
class Replay:
    """The producers and transactions that result from a partition's batches in order."""

    producers: dict[int, ProducerState] = field(default_factory=dict)
    aborted: list[tuple[int, AbortedTransaction]] = field(default_factory=list)
    end: int = 0

    def batch(self, row: dict[str, str], marker: tuple[str, int] | None, segment: int) -> None:
        self.end = int(row["last"]) + 1
        producer_id, epoch = int(row["producer_id"]), int(row["epoch"])
        if producer_id < 0:
            return
        state = self.producers.setdefault(producer_id, ProducerState(epoch))
        if state.epoch != epoch:
            state.epoch, state.batch = epoch, None
        state.last_timestamp = int(row["timestamp"])
        if marker is not None:
            self._marker(producer_id, state, *marker, int(row["last"]), segment)
            return
        base, last = int(row["base"]), int(row["last"])
        state.batch = (int(row["base_sequence"]), int(row["last_sequence"]), last, last - base)
        if row["transactional"] == "true" and state.transaction_first_offset is None:
            state.transaction_first_offset = int(row["base"])

    def _marker(
        self, producer_id: int, state: ProducerState, kind: str, coordinator_epoch: int, offset: int, segment: int
    ) -> None:
        first, state.transaction_first_offset = state.transaction_first_offset, None
        state.coordinator_epoch = coordinator_epoch
        if kind == "ABORT" and first is not None:
            open_ones = [
                p.transaction_first_offset for p in self.producers.values() if p.transaction_first_offset is not None
            ]
            stable = min(open_ones, default=offset + 1)
            self.aborted.append((segment, AbortedTransaction(producer_id, first, offset, stable)))


def dump(files: Iterable[Path], *arguments: str) -> dict[Path, list[str]]:
    """Return the lines that DumpLogSegments prints for each file. Raises AssertionError if it reports an error."""
    listed = sorted(file for file in files if file.stat().st_size)
    if not listed:
        return {}
    result = tools.run(tools.DUMP_LOG_SEGMENTS, *arguments, "--files", ",".join(map(str, listed)), heap="512m")
    complaints = find_complaints(result.stderr)
    complaints += [line for line in result.stdout.splitlines() if re.search(r"invalid bytes|Could not", line)]
    assert not complaints, "DumpLogSegments complains:\n" + "\n".join(complaints[:20])
    found: dict[Path, list[str]] = defaultdict(list)
    current: list[str] = []
    for line in result.stdout.splitlines():
        if line.startswith("Dumping "):
            current = found[Path(line.removeprefix("Dumping "))]
        else:
            current.append(line)
    return found


def find_complaints(errors: str) -> list[str]:
    """Return errors of DumpLogSegments, without the gap to -1 that it reports at the start of each further segment."""
    found = []
    heading = ""
    for line in errors.splitlines():
        if not line.startswith(" "):
            heading = line
        gap_in_compacted = "is followed by" in line and COMPACTED.search(heading)
        if gap_in_compacted or line.startswith(("  -1 is followed by", "Non-consecutive")):
            continue
        found.append(f"{heading} {line}")
    return found


class Dumped(NamedTuple):
    """The dump of a partition's logs: every record's value by offset, and the state at the end of the replay."""

    values: dict[int, str]
    replay: Replay


def check_directory(data_dir: Path) -> tuple[dict[str, Dumped], list[str]]:
    """Dump every log, index, time index, transaction index and snapshot; return the partitions and complaints."""
    partitions = sorted(d for d in data_dir.iterdir() if d.is_dir() and re.search(r"-\d+$", d.name))
    files = [file for d in partitions for file in d.iterdir()]
    logs = dump([f for f in files if f.suffix == ".log"], "--deep-iteration", "--print-data-log")
    dump(f for f in files if f.suffix in (".index", ".timeindex"))
    others = dump(f for f in files if f.suffix in (".txnindex", ".snapshot"))
    complaints: list[str] = []
    found = {}
    for partition in partitions:
        segments = {path: lines for path, lines in logs.items() if path.parent == partition}
        beside = {path: lines for path, lines in others.items() if path.parent == partition}
        found[partition.name], reported = _check_partition(partition, segments, beside)
        complaints += [f"{partition.name}: {complaint}" for complaint in reported]
    return found, complaints


def _check_partition(
    partition: Path, segments: dict[Path, list[str]], beside: dict[Path, list[str]]
) -> tuple[Dumped, list[str]]:
    complaints: list[str] = []
    replay = Replay()
    values: dict[int, str] = {}
    snapshots = sorted(path for path in partition.glob("*.snapshot"))
    wanted = {_offset(path): path for path in snapshots}
    compacted = False
    for path, lines in sorted(segments.items()):
        for row, records in _batches(lines):
            if int(row["base"]) in wanted and replay.end <= int(row["base"]):
                complaints += _check_snapshot(wanted.pop(int(row["base"])), beside, replay, compacted=compacted)
            if row["valid"] != "true":
                complaints.append(f"{path.name}: invalid batch at {row['base']}")
            marker = _marker(records) if row["control"] == "true" else None
            compacted |= int(row["base"]) > replay.end
            replay.batch(row, marker, _offset(path))
            values.update(_values(records))
    if replay.end in wanted:
        complaints += _check_snapshot(wanted.pop(replay.end), beside, replay, compacted=compacted)
    complaints += [] if compacted else [f"{path.name} is of no offset of the log" for path in wanted.values()]
    complaints += [] if compacted else _check_transaction_indexes(beside, replay)
    return Dumped(values, replay), complaints


def _batches(lines: Sequence[str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    row: dict[str, str] | None = None
    records: list[str] = []
    for line in lines:
        if line.startswith("| "):
            records.append(line)
        elif match := _BATCH.match(line):
            if row is not None:
                yield row, records
            row, records = match.groupdict(), []
        elif line.startswith("baseOffset"):
            raise AssertionError(f"unexpected line: {line}")
    if row is not None:
        yield row, records


def _marker(records: Sequence[str]) -> tuple[str, int] | None:
    match = _MARKER.search(records[0]) if records else None
    return (match[1], int(match[2])) if match else None


def _values(records: Sequence[str]) -> Iterator[tuple[int, str]]:
    for record in records:
        if match := _PAYLOAD.match(record):
            yield int(match[1]), match[2]


def _check_snapshot(path: Path, beside: dict[Path, list[str]], replay: Replay, *, compacted: bool) -> list[str]:
    reported: dict[int, ProducerState] = {}
    for line in beside.get(path, ()):
        if match := _SNAPSHOT.match(line):
            producer_id, epoch, coordinator_epoch, first, last_timestamp, *batch = match.groups()
            opened = re.search(r"\d+", first)
            reported[int(producer_id)] = ProducerState(
                int(epoch),
                int(coordinator_epoch),
                int(opened[0]) if opened else None,
                int(last_timestamp),
                tuple(map(int, batch)) if batch[0] is not None else None,
            )
    if reported == replay.producers or compacted:
        return []
    different = [
        f"  producer {p}: {reported.get(p)} but in the log {replay.producers.get(p)}"
        for p in reported.keys() | replay.producers.keys()
        if reported.get(p) != replay.producers.get(p)
    ]
    return [f"{path.name} differs from the log\n" + "\n".join(different)]


def _check_transaction_indexes(beside: dict[Path, list[str]], replay: Replay) -> list[str]:
    reported = [
        (_offset(path), AbortedTransaction(*map(int, match.groups())))
        for path, lines in sorted(beside.items())
        if path.suffix == ".txnindex"
        for line in lines
        if (match := _ABORTED.search(line))
    ]
    if reported == replay.aborted:
        return []
    missing = [each for each in replay.aborted if each not in reported]
    needless = [each for each in reported if each not in replay.aborted]
    return [f"transaction indexes differ from the log (or in order): missing {missing[:5]}, needless {needless[:5]}"]


def _offset(path: Path) -> int:
    return int(path.name.split(".")[0])
