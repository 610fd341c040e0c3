"""Transactions: those that coordinators have, and those that are open in partitions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import describe_producers as producer_messages
from odradek.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from odradek.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from odradek.tools.kafka.cluster import Cluster, check, make_error
from odradek.tools.kafka.connection.connection_errors import NoResponseError, UnsupportedRequestError
from odradek.tools.kafka.problems import report_problem
from odradek.tools.kafka.topics.offsets import TopicPartition, group_by_leader

TRANSACTION_KEY: Final = 1
"""The type of the coordinators of transactions, in FindCoordinator."""
_PARTITIONS_PER_REQUEST: Final = 1000

_OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""In other states DescribeTransactions returns the start of the last transaction, which has ended."""


class KnownTransaction(NamedTuple):
    """A transactional id that a coordinator has."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition although no coordinator has it there."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int


class DescribedTransaction(NamedTuple):
    """The state of a transactional id; `start_time_ms` is None without an open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: list[TopicPartition]


def list_known_transactions(
    cluster: Cluster,
    states: Sequence[str] | None = None,
    producer_ids: Sequence[int] | None = None,
    duration_ms: int | None = None,
    pattern: str | None = None,
    problems: list[str] | None = None,
) -> list[KnownTransaction]:
    """Return the transactional ids of all coordinators, sorted. Raises ValueError for an unknown state.

    With `problems` a broker that does not answer is added to them, otherwise raises NoResponseError.
    """
    found = []
    for broker in cluster.node_ids():
        request = ListTransactionsRequest(
            state_filters=list(states or []),
            producer_id_filters=list(producer_ids or []),
            duration_filter=-1 if duration_ms is None else duration_ms,
            transactional_id_pattern=pattern,
        )
        try:
            if pattern is not None:
                cluster.broker(broker).require_version(ListTransactionsRequest, 2, "a pattern")
            elif duration_ms is not None:
                cluster.broker(broker).require_version(ListTransactionsRequest, 1, "a duration")
            response = cluster.ask_broker(broker, request, ListTransactionsResponse)
        except UnsupportedRequestError:
            raise
        except NoResponseError as error:
            report_problem(error, f"transactions of broker {broker}", problems)
            continue
        check(response.error_code, None, f"transactions of broker {broker}")
        if response.unknown_state_filters:
            raise ValueError(f"unknown state: {', '.join(response.unknown_state_filters)}")
        found += [
            KnownTransaction(one.transactional_id, broker, one.producer_id, one.transaction_state)
            for one in response.transaction_states
        ]
    return sorted(found)


def describe_transactions(cluster: Cluster, names: Sequence[str]) -> dict[str, DescribedTransaction]:
    """Return the states of transactional ids, without those that do not exist any more. Raises RequestError.

    A coordinator that moves is an error: its transactions would be reported as hanging.
    """
    found = {}
    for broker, ids in _group_by_coordinator(cluster, names).items():
        request = DescribeTransactionsRequest(transactional_ids=ids)
        for one in cluster.broker(broker).send(request, DescribeTransactionsResponse).transaction_states:
            if one.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                check(one.error_code, None, f"transactional id {one.transactional_id}")
                is_open = one.transaction_state in _OPEN_STATES and one.transaction_start_time_ms >= 0
                found[one.transactional_id] = DescribedTransaction(
                    one.transactional_id,
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_state,
                    one.transaction_timeout_ms,
                    one.transaction_start_time_ms if is_open else None,
                    [(topic.topic, index) for topic in one.topics for index in topic.partitions],
                )
    return found


def _group_by_coordinator(cluster: Cluster, names: Sequence[str]) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    if names:
        for name, broker in cluster.find_coordinators(names, TRANSACTION_KEY).items():
            grouped.setdefault(broker, []).append(name)
    return grouped


def find_hanging_transactions(
    cluster: Cluster,
    leaders: Mapping[TopicPartition, int],
    before_ms: int,
    on_progress: Callable[[int], None] = lambda count: None,
) -> list[HangingTransaction]:
    """Return the hanging transactions in partitions whose last record is not later than `before_ms`.

    `on_progress` is called with the number of partitions that were read since its last call.
    """
    opened = [
        (key, one)
        for key, one in iter_producers(cluster, leaders, on_progress)
        if one.current_txn_start_offset >= 0 and one.last_timestamp <= before_ms
    ]
    if not opened:
        return []
    producer_ids = sorted({one.producer_id for _, one in opened})
    names = [one.transactional_id for one in list_known_transactions(cluster, producer_ids=producer_ids)]
    known: dict[int, set[TopicPartition]] = {}
    for described in describe_transactions(cluster, names).values():
        known.setdefault(described.producer_id, set()).update(described.partitions)
    return [
        HangingTransaction(
            *key, one.producer_id, one.producer_epoch, one.coordinator_epoch, one.current_txn_start_offset
        )
        for key, one in opened
        if key not in known.get(one.producer_id, set())
    ]


def iter_producers(
    cluster: Cluster, leaders: Mapping[TopicPartition, int], on_progress: Callable[[int], None] = lambda count: None
) -> Iterator[tuple[TopicPartition, producer_messages.DescribeProducersResponseProducerState]]:
    """Iterate over the producers of partitions, with a request for some of them at a time."""
    keys = sorted(leaders)
    for start in range(0, len(keys), _PARTITIONS_PER_REQUEST):
        some = keys[start : start + _PARTITIONS_PER_REQUEST]
        yield from _iter_some_producers(cluster, some, leaders)
        on_progress(len(some))


def _iter_some_producers(
    cluster: Cluster, partitions: Sequence[TopicPartition], leaders: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, producer_messages.DescribeProducersResponseProducerState]]:
    for leader, topics in group_by_leader(partitions, leaders).items():
        request = producer_messages.DescribeProducersRequest(
            topics=[
                producer_messages.DescribeProducersRequestTopicRequest(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ]
        )
        for topic in cluster.broker(leader).send(request, producer_messages.DescribeProducersResponse).topics:
            for partition in topic.partitions:
                if partition.error_code:
                    name = f"{topic.name}-{partition.partition_index}"
                    raise make_error(partition.error_code, partition.error_message, name)
                for one in sorted(partition.active_producers, key=lambda one: one.producer_id):
                    yield (topic.name, partition.partition_index), one
