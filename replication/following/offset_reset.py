"""The choice of a new fetch offset, after the leader has answered OFFSET_OUT_OF_RANGE.

A follower's log that is longer than the leader's is truncated to the leader's end: the leader was elected uncleanly.
Otherwise, a follower's log that ends before the leader's log start starts over there: the leader has deleted the
following records. In all other cases the fetch is repeated after a delay.

Source: Kafka documentation ("Unclean leader election"). ListOffsets of a replica returns the log end.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError, read_error_code
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
)
from odradek.replication.following.fetched_partition import FetchedPartition, FetchState
from odradek.replication.following.settings import FetcherParts
from odradek.replication.remote import BrokerChannel

logger = logging.getLogger(__name__)

LIST_OFFSETS_VERSION: Final = 9
_LATEST: Final = -1
_EARLIEST: Final = -2
_READ_UNCOMMITTED: Final = 0

Isolate = Callable[[FetchedPartition, Awaitable[None]], Awaitable[None]]
"""Awaits work on a partition. If it fails, the partition leaves the state RESETTING."""


class OffsetReset:
    """Resets partitions in state RESETTING, with at most two requests for all of them."""

    __slots__ = ("_channel", "_isolate", "_parts")

    def __init__(self, parts: FetcherParts, channel: BrokerChannel, isolate: Isolate) -> None:
        self._parts = parts
        self._channel = channel
        self._isolate = isolate

    async def run(self, partitions: Iterable[FetchedPartition]) -> None:
        """Reset partitions; those that succeed fetch again. Raises BrokerUnavailableError.

        Partitions that left the state RESETTING meanwhile are ignored.
        """
        for partition, latest in await self._list_offsets(partitions, _LATEST):
            if partition.state is FetchState.RESETTING:
                await self._isolate(partition, self._truncate(partition, latest))
        not_longer = [partition for partition in partitions if partition.state is FetchState.RESETTING]
        if not_longer:
            for partition, earliest in await self._list_offsets(not_longer, _EARLIEST):
                if partition.state is FetchState.RESETTING:
                    await self._isolate(partition, self._start_over(partition, earliest))

    async def _truncate(self, partition: FetchedPartition, latest: int | KafkaError) -> None:
        """Truncate a log that is longer than the leader's. Raises KafkaError."""
        offset = _offset_or_raise(latest)
        if offset < partition.replica.log(partition.leader_epoch).log_end_offset:
            await self._parts.run_steps(partition.replica.truncate_to_leader_end(offset, partition.leader_epoch))
            partition.change_state(FetchState.FETCHING, f"truncated to the leader's log end {offset}")

    async def _start_over(self, partition: FetchedPartition, earliest: int | KafkaError) -> None:
        """Empty a log that ends before the leader's log start. Raises KafkaError."""
        offset = _offset_or_raise(earliest)
        if offset <= partition.replica.log(partition.leader_epoch).log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader's log starts at {offset} and has the fetch offset"
            )
        partition.replica.start_over(offset, partition.leader_epoch)
        partition.change_state(FetchState.FETCHING, f"the log starts over at the leader's log start {offset}")

    async def _list_offsets(
        self, partitions: Iterable[FetchedPartition], timestamp: int
    ) -> list[tuple[FetchedPartition, int | KafkaError]]:
        """Return the offset, or the leader's error, of each partition."""
        topics: dict[str, list[ListOffsetsRequestListOffsetsPartition]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(
                ListOffsetsRequestListOffsetsPartition(
                    partition_index=partition.index,
                    current_leader_epoch=partition.leader_epoch,
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=self._parts.broker_id,
            isolation_level=_READ_UNCOMMITTED,
            topics=[ListOffsetsRequestListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        response = await self._channel.send(request, ListOffsetsResponse, LIST_OFFSETS_VERSION)
        rows = {
            (topic.name, row.partition_index): row for topic in response.topics for row in topic.partitions
        }
        results: list[tuple[FetchedPartition, int | KafkaError]] = []
        for partition in partitions:
            row = rows.get((partition.topic, partition.index))
            if row is None:
                results.append((partition, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the leader returned no offset")))
            elif row.error_code or row.offset < 0:
                code = read_error_code(row.error_code or ErrorCode.UNKNOWN_SERVER_ERROR)
                results.append((partition, KafkaError(code, "ListOffsets failed")))
            else:
                results.append((partition, row.offset))
        return results


def _offset_or_raise(result: int | KafkaError) -> int:
    if isinstance(result, KafkaError):
        raise result
    return result
