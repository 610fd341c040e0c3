"""The partitions in a Fetch request, of which there may be very many: they are added, and freed, in steps."""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final, Protocol, overload

from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
)
from odradek.server.fetching.session_cache import FetchPartition, PartitionKey

PARTITIONS_PER_STEP: Final = 100
"""Maximum number of partitions that are read in one step, which takes up to 0.5 ms. A larger fetch takes more."""

_ITEMS_FREED_PER_STEP: Final = 1000

FetchPartitions = dict[PartitionKey, FetchPartition]


class Freeable(Protocol):
    """A list with elements of any type."""

    def __len__(self) -> int: ...

    def __delitem__(self, index: slice, /) -> None: ...


def is_large_request(request: FetchRequest, most: int) -> bool:
    """Return whether a request has more than `most` partitions."""
    topics, forgotten = request.topics, request.forgotten_topics_data
    if len(topics) == 1 and not forgotten:
        return len(topics[0].partitions) > most
    if len(topics) + len(forgotten) > most:
        return True
    count = sum([len(topic.partitions) for topic in topics]) + sum([len(topic.partitions) for topic in forgotten])
    return count > most


def drain_items(wanted: "Mapping[PartitionKey, FetchPartition]") -> Iterator[tuple[PartitionKey, FetchPartition]]:
    """Yield the items and remove them one by one: freeing a large dictionary at once takes long."""
    assert isinstance(wanted, OrderedDict)
    while wanted:
        yield wanted.popitem(last=False)


def free_in_steps(done: Iterable[Freeable]) -> Generator[None, None, None]:
    """Empty lists in steps: freeing many elements at once takes long."""
    count = 0
    for items in done:
        count += 1
        while items or count >= _ITEMS_FREED_PER_STEP:
            count += len(items)
            del items[-_ITEMS_FREED_PER_STEP:]
            if count >= _ITEMS_FREED_PER_STEP:
                yield
                count = 0


@overload
def split_topics(
    topics: Iterable[FetchRequestFetchTopic],
) -> Iterator[tuple[FetchRequestFetchTopic, list[FetchRequestFetchPartition]]]: ...


@overload
def split_topics(
    topics: Iterable[FetchRequestForgottenTopic],
) -> Iterator[tuple[FetchRequestForgottenTopic, list[int]]]: ...


def split_topics(
    topics: Iterable[FetchRequestFetchTopic | FetchRequestForgottenTopic],
) -> Iterator[tuple[object, object]]:
    """Yield each topic with a few of its partitions at a time; a topic without partitions once, with an empty list."""
    for topic in topics:
        partitions = topic.partitions
        for start in range(0, len(partitions) or 1, PARTITIONS_PER_STEP):
            yield topic, partitions[start : start + PARTITIONS_PER_STEP]


def add_requested(
    requested: FetchPartitions,
    topic: FetchRequestFetchTopic,
    partitions: list[FetchRequestFetchPartition],
    uses_ids: bool,
) -> None:
    """Add the partitions of a topic of the request. The last entry for a repeated partition replaces the others."""
    name = topic.topic_id if uses_ids else topic.topic
    for data in partitions:
        partition = FetchPartition(topic.topic, topic.topic_id, data.partition)
        partition.fetch_offset = data.fetch_offset
        partition.max_bytes = data.partition_max_bytes
        if data.current_leader_epoch >= 0:
            partition.current_leader_epoch = data.current_leader_epoch
        partition.last_fetched_epoch = data.last_fetched_epoch
        partition.fetcher_log_start_offset = data.log_start_offset
        requested[name, data.partition] = partition


def list_keys(topic: FetchRequestForgottenTopic, partitions: Iterable[int], uses_ids: bool) -> list[PartitionKey]:
    """Return the keys of forgotten partitions in a session."""
    return [((topic.topic_id if uses_ids else topic.topic), index) for index in partitions]
