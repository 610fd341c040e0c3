"""Assignments of the members of groups as short texts."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from odradek.tools.console.formats import format_count
from odradek.tools.kafka.topics.offsets import TopicPartition

_MOST_TOPICS: Final = 10
_MOST_RANGES: Final = 12


class TopicAssignment(NamedTuple):
    """The partitions of a topic that a member has, as by `format_ranges`."""

    topic: str
    partitions: str


class Assignment(NamedTuple):
    """The topics of a member, at most _MOST_TOPICS of them."""

    topics: list[TopicAssignment]
    omitted_topics: int


def shorten_assignment(partitions: Iterable[TopicPartition]) -> Assignment:
    """Return the assignment of a member."""
    by_topic: dict[str, set[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, set()).add(partition)
    shown = sorted(by_topic)[:_MOST_TOPICS]
    topics = [TopicAssignment(topic, format_ranges(sorted(by_topic[topic]))) for topic in shown]
    return Assignment(topics, len(by_topic) - len(shown))


def format_ranges(partitions: Sequence[int]) -> str:
    """Return ascending numbers, with runs of them as ranges. After _MOST_RANGES follows the number of the others."""
    texts: list[str] = []
    start = 0
    for end, partition in enumerate(partitions, 1):
        if end < len(partitions) and partitions[end] == partition + 1:
            continue
        if len(texts) == _MOST_RANGES:
            return f"{', '.join(texts)} and {format_count(len(partitions) - start, 'more partition')}"
        first = partitions[start]
        texts.append(str(first) if first == partition else f"{first}\N{EN DASH}{partition}")
        start = end
    return ", ".join(texts)
