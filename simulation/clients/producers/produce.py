"""The Produce request, and the meaning of its errors, for all producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.simulation.clients.link import Link
from odradek.simulation.history import History, Partition

NOT_WRITTEN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors after which the attempt has written nothing. After any other error the batch may be in the log."""

_AFTER_ELECTION: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""Errors that a broker also returns if it loses the leadership while the written batch waits for replicas."""


def is_unwritten(history: History, code: int) -> bool:
    """Return whether an attempt with this error has certainly written nothing."""
    return code in NOT_WRITTEN and not (history.settings.is_cluster and code in _AFTER_ELECTION)


NEVER_EXPECTED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors that the broker must never return to a simulated client."""


class Produced(NamedTuple):
    """The broker's response for one batch."""

    code: int
    base_offset: int
    log_append_time: int


async def produce_request(
    link: Link, batches: Mapping[Partition, bytes], acks: int, transactional_id: str | None = None
) -> ProduceRequest:
    """Return a request with one batch for each partition. Raises GaveUp."""
    topic_ids = await link.topic_ids(list(dict.fromkeys(topic for topic, _ in batches)))
    topics: dict[str, ProduceRequestTopicProduceData] = {}
    for (topic, index), batch in batches.items():
        data = topics.setdefault(
            topic, ProduceRequestTopicProduceData(name=topic, topic_id=topic_ids[topic], partition_data=[])
        )
        data.partition_data.append(ProduceRequestPartitionProduceData(index=index, records=batch))
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1500, topic_data=list(topics.values())
    )


async def parse_produced(link: Link, response: Any) -> dict[Partition, Produced]:
    """Return the responses by partition; record invalid ones in the history."""
    names = {topic_id: name for name, topic_id in (await link.topic_ids([])).items()}
    found = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "?")
        for row in topic.partition_responses:
            if row.error_code in NEVER_EXPECTED:
                link.history.note_odd(link.name, f"produce to {name}-{row.index}: {ErrorCode(row.error_code).name}")
            found[name, row.index] = Produced(row.error_code, row.base_offset, row.log_append_time_ms)
    return found
