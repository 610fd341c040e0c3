"""Acknowledgements to producers, reads of consumers, and the rules that hold between them.

Every value is `<writer>.<number>`; a writer counts from 0. The rules are functions of plain data that return
complaints, so that a test can show that each of them finds violations.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

COMPLAINTS_SHOWN = 20


class Fate(Enum):
    """Outcome of a record, or of its transaction if it has one, as reported to the producer."""

    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    ABORTED = "aborted"


class Stored(NamedTuple):
    """A record of a partition as read by a consumer."""

    offset: int
    value: bytes


Log = Mapping[int, Sequence[Stored]]


@dataclass(slots=True)
class Entry:
    """A record that was passed to a producer. Partition and offset are those that the producer reported."""

    fate: Fate = Fate.UNKNOWN
    partition: int | None = None
    offset: int | None = None
    transaction: int | None = None


@dataclass
class Ledger:
    """All records of one writer. `once`: its producer is idempotent, so retries must not write duplicates.
    `in_order`: its records stay in order, also when they are sent again.

    An entry is changed by one thread, and read by others only after the writer has ended.
    """

    writer: str
    once: bool
    entries: list[Entry] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    in_order: bool = True

    def add(self, transaction: int | None = None) -> tuple[int, bytes]:
        """Add an entry; return its number and the value to send."""
        self.entries.append(Entry(transaction=transaction))
        number = len(self.entries) - 1
        return number, b"%s.%d" % (self.writer.encode(), number)

    def entry(self, number: int) -> Entry:
        """Return the entry of a number that another kind of writer, such as a process, has counted itself."""
        while len(self.entries) <= number:
            self.entries.append(Entry())
        return self.entries[number]

    def count(self, fate: Fate) -> int:
        return sum(entry.fate is fate for entry in self.entries)


def split(value: bytes) -> tuple[str, int]:
    """Return writer and number of a value."""
    writer, _, number = value.rpartition(b".")
    return writer.decode(), int(number)


def check_log(ledgers: Iterable[Ledger], log: Log, *, committed_only: bool) -> list[str]:
    """Return the violations of acknowledgements in a topic.

    `committed_only`: the topic was read with read_committed, so it has no record of an aborted transaction, and each
    transaction is complete or absent.
    """
    found: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for partition, records in log.items():
        for record in records:
            writer, number = split(record.value)
            found[writer][number].append((partition, record.offset))
    complaints = [f"partition {p}: {c}" for p, records in log.items() for c in _check_increasing(records)]
    by_name = {ledger.writer: ledger for ledger in ledgers}
    complaints += [f"{name}: never written" for name in found.keys() - by_name.keys()]
    for name, ledger in by_name.items():
        places = found.get(name, {})
        problems = [
            *_check_presence(ledger, places, committed_only=committed_only),
            *(_check_order(log, name) if ledger.in_order else ()),
            *(_check_transactions(ledger, places) if committed_only else ()),
        ]
        complaints += [f"{name}: {complaint}" for complaint in problems]
    return complaints


def _check_increasing(records: Sequence[Stored]) -> Iterable[str]:
    for before, after in pairwise(records):
        if before.offset >= after.offset:
            yield f"offset {after.offset} was read after {before.offset}"


def _check_presence(
    ledger: Ledger, places: Mapping[int, Sequence[tuple[int, int]]], *, committed_only: bool
) -> Iterable[str]:
    for number in places.keys() - range(len(ledger.entries)):
        yield f"{number} exists and was never sent"
    for number, entry in enumerate(ledger.entries):
        there = places.get(number, ())
        if entry.fate is Fate.ACKNOWLEDGED and not there:
            yield f"{number} was acknowledged ({entry}) and is lost"
        if entry.fate is Fate.ABORTED and committed_only and there:
            yield f"{number} was aborted and is visible at {there}"
        if ledger.once and len(there) > 1:
            yield f"{number} exists more than once: {there}"
        if entry.fate is Fate.ACKNOWLEDGED and there and entry.partition is not None:
            at = {offset for partition, offset in there if partition == entry.partition}
            if not at:
                yield f"{number} was acknowledged in partition {entry.partition} and is at {there}"
            elif entry.offset is not None and entry.offset not in at:
                yield f"{number} was acknowledged at {entry.partition}:{entry.offset} and is at {there}"


def _check_order(log: Log, writer: str) -> Iterable[str]:
    """In each partition a writer's records appear (for the first time) in the order of sending."""
    prefix = writer.encode() + b"."
    for partition, records in log.items():
        highest = -1
        seen: set[int] = set()
        for record in records:
            if record.value.startswith(prefix):
                number = int(record.value[len(prefix) :])
                if number not in seen and number < highest:
                    yield f"{number} follows {highest} in partition {partition} (offset {record.offset})"
                seen.add(number)
                highest = max(highest, number)


def _check_transactions(ledger: Ledger, places: Mapping[int, Sequence[tuple[int, int]]]) -> Iterable[str]:
    members: dict[int, list[int]] = defaultdict(list)
    for number, entry in enumerate(ledger.entries):
        if entry.transaction is not None:
            members[entry.transaction].append(number)
    for transaction, numbers in members.items():
        there = [number for number in numbers if number in places]
        if there and len(there) != len(numbers):
            missing = sorted(set(numbers) - set(there))
            yield f"transaction {transaction} is torn: {there} exist and {missing} do not"


class Sightings:
    """The values that readers received, by offset; one offset never has two values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[int, int], bytes] = {}
        self.complaints: list[str] = []

    def add(self, reader: str, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            known = self._values.setdefault((partition, offset), value)
        if known != value:
            self.complaints.append(f"{reader}: {partition}:{offset} is {value!r} and was {known!r}")

    def __len__(self) -> int:
        return len(self._values)

    def check(self, log: Log, *, whole: bool) -> list[str]:
        """Check that all values read are in the log; with `whole`, also that all values in the log were read."""
        stored = {(partition, r.offset): r.value for partition, records in log.items() for r in records}
        complaints = list(self.complaints)
        for place, value in self._values.items():
            if stored.get(place) != value:
                complaints.append(f"{value!r} was read at {place}, where {stored.get(place)!r} is now")
        if whole:
            complaints += [f"{place} was skipped" for place in stored.keys() - self._values.keys()]
        return complaints


class CommittedOffsets:
    """The lower bound of committed offsets in OffsetFetch responses, which never falls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._least: dict[int, int] = {}
        self.complaints: list[str] = []
        self.looked = 0

    def record_commit(self, offsets: Mapping[int, int]) -> None:
        """Record a commit that succeeded."""
        with self._lock:
            for partition, offset in offsets.items():
                self._least[partition] = max(offset, self._least.get(partition, offset))

    def least(self) -> dict[int, int]:
        """Return the lower bounds, before the fetch whose response is compared with them."""
        with self._lock:
            return dict(self._least)

    def check_fetch(self, least: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        """Compare a fetch's response with the bounds; it lacks partitions without a committed offset."""
        self.looked += 1
        for partition, offset in least.items():
            fetched = offsets.get(partition)
            if fetched is None or fetched < offset:
                self.complaints.append(f"committed offset of partition {partition} was {offset} and is {fetched}")
        self.record_commit(offsets)


def shown(complaints: Sequence[str]) -> str:
    """Return the first complaints and the number of the others."""
    rest = len(complaints) - COMPLAINTS_SHOWN
    lines = [*complaints[:COMPLAINTS_SHOWN], *([f"... and {rest} more"] if rest > 0 else [])]
    return "\n".join(f"  {line}" for line in lines)
