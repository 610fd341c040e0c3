"""Read-process-write: records before the group's committed offsets were copied exactly once, no others (KIP-447)."""

from __future__ import annotations

from collections.abc import Container, Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.checks.offsets import find_stale_readers
from odradek.simulation.history import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Copy,
    Isolation,
    Partition,
    label_of,
    label_text,
    name_of,
    origin_of,
)


def check_copies(evidence: Evidence) -> Iterator[Violation]:
    """Check every job unless a crash may have truncated its topics."""
    stale = find_stale_readers(evidence)
    for copy in evidence.history.copies:
        topics = [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, *(topic for topic, _ in (*copy.inputs, *copy.outputs))]
        if not any(len(evidence.crashes(topic)) for topic in topics):
            yield from _check(evidence, copy, {source for group, source in stale if group == copy.group})


def _check(evidence: Evidence, copy: Copy, copied_again: Container[Partition]) -> Iterator[Violation]:
    """Check a job. Records of partitions in `copied_again` may have been copied more than once."""
    copies: dict[tuple[Partition, int], list[str]] = {}
    labels: dict[tuple[Partition, int], bytes] = {}
    for output in copy.outputs:
        for offset, record in evidence.final_records(output, Isolation.READ_COMMITTED).items():
            origin = origin_of(record.value) if record.value is not None else None
            if origin is not None:
                copies.setdefault(origin[:2], []).append(f"{name_of(output)}@{offset}")
                labels[origin[:2]] = origin[2]
    for source in copy.inputs:
        committed = evidence.final.offsets.get((copy.group, source), -1)
        for offset, record in evidence.final_records(source, Isolation.READ_COMMITTED).items():
            places = copies.pop((source, offset), [])
            text = f"group {copy.group} {name_of(source)} offset {offset} {label_text(record.value)}"
            text += f", committed {committed}"
            if record.value is not None and places and labels[source, offset] != label_of(record.value):
                text += f" as {labels[source, offset]!r}"
                places = []
            if len(places) > 1 and source not in copied_again:
                yield Violation(ViolationKind.COPY_DUPLICATE, f"{text}: {', '.join(places)}")
            elif places and offset >= committed and source not in copied_again:
                yield Violation(ViolationKind.COPY_UNCOMMITTED, f"{text}: {places[0]}")
            elif not places and offset < committed:
                yield Violation(ViolationKind.COPY_MISSING, text)
    for (source, offset), places in copies.items():
        if source in copy.inputs:
            yield Violation(
                ViolationKind.COPY_DUPLICATE,
                f"group {copy.group}: {', '.join(places)} copies {name_of(source)} offset {offset}, which "
                "READ_COMMITTED consumers do not receive",
            )
