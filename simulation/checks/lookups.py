"""ListOffsets by timestamp and for the largest timestamp: the responses match the records (KIP-79, KIP-734)."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import EARLIEST, LARGEST, Isolation, Lookup, name_of

_NONE = (-1, -1)


def check_lookups(evidence: Evidence) -> Iterator[Violation]:
    """Check every lookup against the final read of its partition."""
    for lookup in evidence.final.lookups:
        log = evidence.final_log(lookup.partition, Isolation.READ_UNCOMMITTED)
        if log is None:
            continue
        expected = _expected(lookup.wanted, log.start_offset, log.stamps)
        if (lookup.offset, lookup.timestamp) not in expected:
            yield Violation(
                ViolationKind.WRONG_LOOKUP,
                f"{name_of(lookup.partition)} for {lookup.wanted}: {_text(lookup)}, expected: {expected[:3]}",
            )


def _text(lookup: Lookup) -> str:
    return f"offset {lookup.offset} timestamp {lookup.timestamp}"


def _expected(wanted: int, start_offset: int, stamps: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return the correct (offset, timestamp) pairs; several if records share the largest timestamp."""
    if wanted == EARLIEST:
        return [(start_offset, -1)]
    if wanted == LARGEST:
        largest = max((timestamp for _, timestamp in stamps), default=-1)
        # If no record has a timestamp, Kafka returns the first record.
        return [_NONE, *stamps] if largest < 0 else [stamp for stamp in stamps if stamp[1] == largest]
    return [next((stamp for stamp in stamps if stamp[1] >= wanted), _NONE)]
