"""Beginning, end, offset, last records or time as offsets of partitions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.times import parse_duration_ms, parse_time_ms
from odradek.tools.kafka.topics.offsets import (
    EARLIEST,
    LATEST,
    TopicPartition,
    check_partitions,
    fetch_offsets,
    find_leaders,
)
from odradek.tools.records.errors import InvalidOptionError

BEGINNING: Final = "beginning"
END: Final = "end"
OFFSET: Final = "offset"
LAST: Final = "last"
TIME: Final = "time"
_NAMES: Final = {"beginning": BEGINNING, "earliest": BEGINNING, "start": BEGINNING, "end": END, "latest": END}


class Position(NamedTuple):
    """A position in all partitions.

    kind: BEGINNING, END, OFFSET, LAST or TIME
    number: the offset, the number of last records, or milliseconds since 1970
    """

    kind: str
    number: int = 0


class Range(NamedTuple):
    """The offsets of a partition that are read, without `end`."""

    start: int
    end: int


def parse_position(text: str, now_ms: int) -> Position:
    """Parse `beginning`, `end`, an offset, `-N`, a time, `@MS`, or a duration before now.

    Raises InvalidOptionError.
    """
    if text in _NAMES:
        return Position(_NAMES[text])
    if re.fullmatch(r"\d{1,18}", text):
        return Position(OFFSET, int(text))
    if re.fullmatch(r"-\d{1,18}", text):
        return Position(LAST, int(text[1:]))
    if re.fullmatch(r"@\d{1,18}", text):
        return Position(TIME, int(text[1:]))
    try:
        return Position(TIME, now_ms - parse_duration_ms(text))
    except ValueError:
        pass
    try:
        if not re.fullmatch(r"\d+", text):  # offsets too large, which would be times otherwise
            return Position(TIME, parse_time_ms(text))
    except ValueError:
        pass
    hint = "use beginning, end, an offset, -N for the last N records, 1h, 2026-01-31T12:00 or @MILLISECONDS"
    raise InvalidOptionError(f"{text} is no position; {hint}")


def parse_partitions(text: str) -> list[int]:
    """Parse a list such as `0,2-4`. Raises InvalidOptionError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise InvalidOptionError(f"--partitions {text}: {part} is neither a partition nor a range such as 2-4")
        first = int(match[1])
        last = int(match[2] or first)
        if last - first > 100_000:
            raise InvalidOptionError(f"--partitions {text}: {part} is too long")
        found.update(range(first, last + 1))
    return sorted(found)


def find_topics(cluster: Cluster, names: Sequence[str], *, are_patterns: bool) -> list[str]:
    """Return the topics of names or regular expressions. Raises RequestError for what does not exist."""
    if not are_patterns:
        return [topic.name or "" for topic in cluster.fetch_topics(names)]
    patterns = []
    for name in names:
        try:
            patterns.append(re.compile(name))
        except re.error as error:
            raise InvalidOptionError(f"{name} is no regular expression: {error}") from None
    existing = [topic.name or "" for topic in cluster.fetch_topics() if not topic.is_internal]
    found = [name for name in existing if any(pattern.fullmatch(name) for pattern in patterns)]
    if not found:
        raise RequestError("UNKNOWN_TOPIC_OR_PARTITION", f"no topic matches {' or '.join(names)}")
    return found


def find_ranges(
    cluster: Cluster,
    topics: Iterable[str],
    partitions: Sequence[int] | None,
    start: Position,
    until: Position,
    isolation_level: int,
) -> dict[TopicPartition, Range]:
    """Return the ranges of partitions; empty ones are included. Raises RequestError."""
    leaders = find_leaders(cluster, topics)
    if partitions is None:
        selected = sorted(leaders)
    else:
        selected = [(topic, partition) for topic in sorted({name for name, _ in leaders}) for partition in partitions]
        check_partitions(selected, leaders)
    if offline := [key for key in selected if leaders[key] < 0]:
        topic, partition = offline[0]
        raise RequestError("LEADER_NOT_AVAILABLE", f"{topic}-{partition} has no leader")

    def fetch(timestamp: int) -> dict[TopicPartition, int]:
        found = fetch_offsets(cluster, dict.fromkeys(selected, timestamp), leaders, isolation_level)
        return {key: one.offset for key, one in found.items()}

    first, last = fetch(EARLIEST), fetch(LATEST)

    def find(position: Position) -> Mapping[TopicPartition, int]:
        if position.kind == BEGINNING:
            return first
        if position.kind == END:
            return last
        if position.kind == OFFSET:
            return dict.fromkeys(last, position.number)
        if position.kind == LAST:
            return {key: offset - position.number for key, offset in last.items()}
        found = fetch(position.number)
        return {key: found[key] if found.get(key, -1) >= 0 else last[key] for key in last}

    starts, ends = find(start), find(until)
    missing = [key for key in selected if key not in first or key not in last]
    if missing:
        topic, partition = missing[0]
        raise RequestError("NOT_LEADER_OR_FOLLOWER", f"the leader of {topic}-{partition} changes; repeat the command")
    return {
        key: Range(min(max(starts[key], first[key]), last[key]), min(max(ends[key], first[key]), last[key]))
        for key in selected
    }
