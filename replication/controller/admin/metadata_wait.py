"""Waiting until the metadata cache of this broker shows a change, which arrives with UpdateMetadata."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from odradek.replication.controller.events import Executor
from odradek.replication.metadata.image import NO_LEADER, ClusterMetadata, MetadataDelta, TopicMetadata
from odradek.replication.metadata.store import Waiter
from odradek.replication.remote import Delay


class _Wait(NamedTuple):
    is_shown: Callable[[], bool]
    waiter: Waiter


class MetadataWait:
    """The requests that wait for the cache. Each ends with a publication of the cache, or with its timeout."""

    def __init__(self, cache: ClusterMetadata, executor: Executor, delay: Delay) -> None:
        self.cache = cache
        self._executor = executor
        self._delay = delay
        self._waits: dict[int, _Wait] = {}
        self._last = 0
        cache.listeners.append(self._on_metadata)

    async def until_all(
        self, is_shown: Callable[[TopicMetadata], bool], topics: Iterable[TopicMetadata], timeout_ms: int
    ) -> bool:
        """Return True when `is_shown` has been true for each topic, or False after the timeout."""
        missing = list(topics)

        def are_shown() -> bool:
            while missing and is_shown(missing[-1]):
                missing.pop()
            return not missing

        return await self.until(are_shown, timeout_ms)

    async def until(self, is_shown: Callable[[], bool], timeout_ms: int) -> bool:
        """Return True when `is_shown` is, or False after the timeout."""
        if is_shown():
            return True
        if timeout_ms <= 0:
            return False
        self._last += 1
        number, waiter = self._last, self._executor.waiter()
        self._waits[number] = _Wait(is_shown, waiter)
        self._executor.start(self._expire(number, timeout_ms))
        await waiter
        return is_shown()

    async def _expire(self, number: int, timeout_ms: int) -> None:
        await self._delay(timeout_ms)
        self._end(number)

    def _on_metadata(self, delta: MetadataDelta) -> None:
        for number, wait in list(self._waits.items()):
            if wait.is_shown():
                self._end(number)

    def _end(self, number: int) -> None:
        wait = self._waits.pop(number, None)
        if wait is not None:
            wait.waiter.callback(None)

    def has_leaders(self, topic: TopicMetadata) -> bool:
        """Return whether the cache has at least the partitions of a topic, each with a leader."""
        cached = self.cache.topics.get(topic.name)
        return (
            cached is not None
            and cached.topic_id == topic.topic_id
            and len(cached.partitions) >= len(topic.partitions)
            and all(partition.leader != NO_LEADER for partition in cached.partitions[: len(topic.partitions)])
        )

    def is_deleted(self, topic: TopicMetadata) -> bool:
        """Return whether the cache does not have a topic."""
        cached = self.cache.topics.get(topic.name)
        return cached is None or cached.topic_id != topic.topic_id
