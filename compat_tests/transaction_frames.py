"""Single requests of transactional producers, so that a test can send each one at any time and in any version.

A function sends one request and returns the response; only those that say so wait or retry.
"""

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from kafka.protocol.admin.topics import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from compat_tests import limits
from compat_tests.bad_frames import BATCH, CONTROL, TRANSACTIONAL, Connection, batch, produce_request

Partition = tuple[str, int]

PATIENCE_S = limits.CONDITION_S
TRANSACTION_KEY_TYPE = 1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, EARLIEST, LARGEST = -1, -2, -3


class Code(IntEnum):
    """Kafka's error codes of transactions."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    UNKNOWN_PRODUCER_ID = 59
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105
    INVALID_REGULAR_EXPRESSION = 128
    TRANSACTION_ABORTABLE = 120


NOT_YET = {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.CONCURRENT_TRANSACTIONS,
}


class Producer(NamedTuple):
    """A transactional producer: its ids and epoch in the coordinator."""

    transactional_id: str
    producer_id: int
    epoch: int

    def at(self, epoch: int) -> "Producer":
        return self._replace(epoch=epoch)

    def older(self) -> "Producer":
        return self._replace(epoch=self.epoch - 1)


class Initialized(NamedTuple):
    code: int
    producer_id: int
    epoch: int


def code(number: int) -> int:
    """Return the code as an enum member if it has one here, for readable assertion errors."""
    return Code(number) if number in Code._value2member_map_ else number


def retry_until_ready(call: Callable[[], Any], get_code: Callable[[Any], int] = lambda answer: answer) -> Any:
    """Repeat a call while its response is that the coordinator is not ready."""
    give_up_at = time.monotonic() + PATIENCE_S
    while get_code(answer := call()) in NOT_YET and time.monotonic() < give_up_at:
        time.sleep(0.01)
    return answer


def await_coordinator(connection: Connection, transactional_id: str = "any") -> None:
    """Return when the broker has created the transaction topic and serves it."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        asked = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION_KEY_TYPE)
        if connection.ask(asked, FindCoordinatorResponse, 1).error_code == 0:
            return
        assert time.monotonic() < give_up_at, "no transaction coordinator"
        time.sleep(0.05)


def init(
    connection: Connection,
    transactional_id: str | None,
    *,
    producer: tuple[int, int] = (-1, -1),
    timeout_ms: int = 60_000,
    version: int = 4,
) -> Initialized:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    answer = connection.ask(request, InitProducerIdResponse, version)
    return Initialized(code(answer.error_code), answer.producer_id, answer.producer_epoch)


def start(connection: Connection, transactional_id: str, **options: Any) -> Producer:
    """Return a producer that is ready for its first transaction; wait for the coordinator and an earlier abort."""
    answer = retry_until_ready(lambda: init(connection, transactional_id, **options), lambda answer: answer.code)
    assert answer.code == Code.NONE
    return Producer(transactional_id, answer.producer_id, answer.epoch)


def add_partitions(
    connection: Connection, producer: Producer, partitions: Iterable[Partition], version: int = 3
) -> dict[Partition, int]:
    """AddPartitionsToTxn as producers send it (versions 0 to 3)."""
    of_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[of_topic(name=name, partitions=found) for name, found in by_topic(partitions).items()],
    )
    answer = connection.ask(request, AddPartitionsToTxnResponse, version)
    return _codes_of_added(answer.results_by_topic_v3_and_below)


def add_batched(
    connection: Connection,
    wanted: Mapping[Producer, Iterable[Partition]],
    *,
    verify_only: bool = False,
    version: int = 5,
) -> tuple[int, dict[tuple[str, Partition], int]]:
    """AddPartitionsToTxn as brokers send it (versions 4, 5): (error code, codes by transactional id and partition)."""
    of_transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    of_topic = of_transaction.AddPartitionsToTxnTopic
    entries = [
        of_transaction(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=[of_topic(name=name, partitions=found) for name, found in by_topic(partitions).items()],
        )
        for producer, partitions in wanted.items()
    ]
    answer = connection.ask(AddPartitionsToTxnRequest(transactions=entries), AddPartitionsToTxnResponse, version)
    codes = {
        (entry.transactional_id, partition): found
        for entry in answer.results_by_transaction
        for partition, found in _codes_of_added(entry.topic_results).items()
    }
    return code(answer.error_code), codes


def _codes_of_added(topics: Iterable[Any]) -> dict[Partition, int]:
    return {
        (topic.name, each.partition_index): code(each.partition_error_code)
        for topic in topics
        for each in topic.results_by_partition
    }


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


def add_offsets(connection: Connection, producer: Producer, group: str, version: int = 3) -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    return code(connection.ask(request, AddOffsetsToTxnResponse, version).error_code)


def commit_offset(
    connection: Connection,
    producer: Producer,
    group: str,
    partition: Partition,
    offset: int = 1,
    *,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    text: str = "",
    version: int = 3,
) -> int:
    """TxnOffsetCommit of one partition; the member's fields are sent from version 3 on."""
    of_topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    asked = of_topic.TxnOffsetCommitRequestPartition(
        partition_index=partition[1], committed_offset=offset, committed_leader_epoch=-1, committed_metadata=text
    )
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[of_topic(name=partition[0], partitions=[asked])],
    )
    (topic,) = connection.ask(request, TxnOffsetCommitResponse, version).topics
    (response,) = topic.partitions
    return code(response.error_code)


def committed(connection: Connection, group: str, partition: Partition, *, stable: bool = False) -> tuple[int, int]:
    """OffsetFetch 7: (error code, committed offset or -1); `stable` requests an error for pending transactions."""
    asked = OffsetFetchRequest.OffsetFetchRequestTopic(name=partition[0], partition_indexes=[partition[1]])
    request = OffsetFetchRequest(group_id=group, topics=[asked], require_stable=stable)
    answer = connection.ask(request, OffsetFetchResponse, 7)
    assert answer.error_code == 0, answer
    (response,) = answer.topics[0].partitions
    return code(response.error_code), response.committed_offset


def end(connection: Connection, producer: Producer, *, commit: bool = True, version: int = 4) -> Initialized:
    """EndTxn: (error code, producer id, epoch), the last two from version 5 on."""
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    answer = connection.ask(request, EndTxnResponse, version)
    if version < 5:
        return Initialized(code(answer.error_code), -1, -1)
    return Initialized(code(answer.error_code), answer.producer_id, answer.producer_epoch)


def finish(connection: Connection, producer: Producer, *, commit: bool = True, version: int = 4) -> Producer:
    """End a transaction, wait until all its markers are written, and return the producer for the next one."""
    answer = retry_until_ready(
        lambda: end(connection, producer, commit=commit, version=version), lambda response: response.code
    )
    assert answer.code == Code.NONE
    await_state(connection, producer.transactional_id, "CompleteCommit" if commit else "CompleteAbort")
    if version < 5:
        return producer
    return producer._replace(producer_id=answer.producer_id, epoch=answer.epoch)


def await_state(connection: Connection, transactional_id: str, state: str) -> Any:
    """Wait until DescribeTransactions returns this state, and return the description."""
    give_up_at = time.monotonic() + PATIENCE_S
    while (response := describe(connection, transactional_id)).transaction_state != state:
        assert time.monotonic() < give_up_at, f"{transactional_id} is in {response.transaction_state}, not {state}"
        time.sleep(0.01)
    return response


def records_of(
    producer: Producer, sequence: int = 0, count: int = 1, *, transactional: bool = True, **options: Any
) -> bytes:
    """Return a batch of this producer's transaction."""
    return batch(
        [(b"key", b"%d" % (sequence + n)) for n in range(count)],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if transactional else 0,
        **options,
    )


def produce(
    connection: Connection,
    producer: Producer,
    partition: Partition,
    records: bytes,
    *,
    version: int = 11,
    transactional_id: str | None = "its own",
    topic_id: Any = None,
) -> tuple[int, int]:
    """Produce to one partition: (error code, base offset). From version 12 on this adds the partition implicitly."""
    name = producer.transactional_id if transactional_id == "its own" else transactional_id
    request = produce_request(topic_id or partition[0], records, partition=partition[1], transactional_id=name)
    answer = connection.ask(request, ProduceResponse, version)
    (response,) = answer.responses[0].partition_responses
    return code(response.error_code), response.base_offset


def write(connection: Connection, producer: Producer, partition: Partition, records: bytes, **options: Any) -> int:
    """Produce and return the base offset; wait while the coordinator ends the previous transaction."""
    error_code, base_offset = retry_until_ready(
        lambda: produce(connection, producer, partition, records, **options), lambda answer: answer[0]
    )
    assert error_code == Code.NONE
    return base_offset


class Fetched(NamedTuple):
    """The response for one partition; `aborted` is (producer id, first offset) of each, None if not requested."""

    code: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]] | None
    records: bytes


def fetch(
    connection: Connection,
    partition: Partition,
    offset: int = 0,
    *,
    isolation: int = READ_COMMITTED,
    version: int = 12,
    max_bytes: int = 1_000_000,
    topic_id: Any = None,
) -> Fetched:
    """Fetch without a session; by topic id from version 13 on."""
    of_topic = FetchRequest.FetchTopic
    asked = of_topic.FetchPartition(
        partition=partition[1],
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[of_topic(**({"topic_id": topic_id} if topic_id else {"topic": partition[0]}), partitions=[asked])],
        forgotten_topics_data=[],
        rack_id="",
    )
    (response,) = connection.ask(request, FetchResponse, version).responses[0].partitions
    aborted = response.aborted_transactions
    listed = None if aborted is None else sorted((each.producer_id, each.first_offset) for each in aborted)
    offsets = response.high_watermark, response.last_stable_offset
    return Fetched(code(response.error_code), *offsets, listed, bytes(response.records or b""))


class Batch(NamedTuple):
    """The header of a batch in a fetched log; `marker` is (0 abort or 1 commit, coordinator epoch) or None."""

    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    producer_id: int
    epoch: int
    base_sequence: int
    transactional: bool
    marker: tuple[int, int] | None


def batches(records: bytes) -> list[Batch]:
    """Return the headers of complete batches; records are not decoded."""
    found = []
    position = 0
    while position + BATCH.size <= len(records):
        fields = BATCH.unpack_from(records, position)
        base_offset, length, attributes = fields[0], fields[1], fields[5]
        if position + 12 + length > len(records):
            break
        is_control = bool(attributes & CONTROL)
        found.append(
            Batch(
                base_offset,
                fields[12],
                fields[9],
                fields[10],
                fields[11],
                bool(attributes & TRANSACTIONAL),
                _marker(records[position + BATCH.size : position + 12 + length]) if is_control else None,
            )
        )
        position += 12 + length
    return found


def _marker(record: bytes) -> tuple[int, int]:
    # Length, attributes, two deltas and the key's length take one byte each.
    _, kind = struct.unpack_from(">hh", record, 5)
    _, coordinator_epoch = struct.unpack_from(">hi", record, 10)
    return kind, coordinator_epoch


def offset_at(
    connection: Connection, partition: Partition, timestamp: int = LATEST, *, isolation: int, version: int = 7
) -> tuple[int, int]:
    """ListOffsets: (error code, offset)."""
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    asked = of_topic.ListOffsetsPartition(partition_index=partition[1], current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[of_topic(name=partition[0], partitions=[asked])]
    )
    (response,) = connection.ask(request, ListOffsetsResponse, version).topics[0].partitions
    return code(response.error_code), response.offset


def delete_records(connection: Connection, partition: Partition, before: int) -> tuple[int, int]:
    """DeleteRecords: (error code, low watermark); -1 is the high watermark."""
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic
    asked = of_topic.DeleteRecordsPartition(partition_index=partition[1], offset=before)
    request = DeleteRecordsRequest(topics=[of_topic(name=partition[0], partitions=[asked])], timeout_ms=5000)
    (response,) = connection.ask(request, DeleteRecordsResponse, 2).topics[0].partitions
    return code(response.error_code), response.low_watermark


def describe(connection: Connection, transactional_id: str) -> Any:
    """DescribeTransactions of one id."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (response,) = connection.ask(request, DescribeTransactionsResponse, 0).transaction_states
    return response


def list_transactions(
    connection: Connection,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
    version: int = 2,
) -> tuple[int, list[str], dict[str, str]]:
    """Return (error code, unknown states among the filters, state by transactional id)."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )
    answer = connection.ask(request, ListTransactionsResponse, version)
    found = {each.transactional_id: each.transaction_state for each in answer.transaction_states}
    return code(answer.error_code), sorted(answer.unknown_state_filters), found


def describe_producers(connection: Connection, partition: Partition) -> tuple[int, list[Any]]:
    """Return (error code, active producers by id)."""
    asked = DescribeProducersRequest.TopicRequest(name=partition[0], partition_indexes=[partition[1]])
    answer = connection.ask(DescribeProducersRequest(topics=[asked]), DescribeProducersResponse, 0)
    (response,) = answer.topics[0].partitions
    return code(response.error_code), sorted(response.active_producers, key=lambda producer: producer.producer_id)


def write_markers(
    connection: Connection,
    producer: Producer,
    partitions: Iterable[Partition],
    *,
    commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
    version: int = 2,
) -> dict[Partition, int]:
    """WriteTxnMarkers with one marker, as coordinators send it."""
    of_marker = WriteTxnMarkersRequest.WritableTxnMarker
    of_topic = of_marker.WritableTxnMarkerTopic
    topics = [of_topic(name=name, partition_indexes=found) for name, found in by_topic(partitions).items()]
    marker = of_marker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=topics,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    answer = connection.ask(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, version)
    return {
        (topic.name, each.partition_index): code(each.error_code)
        for response in answer.markers
        for topic in response.topics
        for each in topic.partitions
    }


def await_topic(connection: Connection, topic: str, partitions: int = 1) -> Any:
    """Wait until every partition of a new topic has a leader; return the topic's id."""
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        (response,) = connection.ask(asked, MetadataResponse, 12).topics
        indexes = range(partitions) if response.error_code == 0 and len(response.partitions) == partitions else ()
        if indexes and all(offset_at(connection, (topic, n), isolation=0)[0] == Code.NONE for n in indexes):
            return response.topic_id
        assert time.monotonic() < give_up_at, f"{topic} has no leader"
        time.sleep(0.02)


def leave_hanging(port: int, topic: str, *transactional_ids: str) -> list[Producer]:
    """Begin transactions that no coordinator has, one in each partition of a new topic; return their producers.

    A late batch does so at a broker that does not verify transactions.
    """
    producers = []
    with Connection(port) as connection:
        await_coordinator(connection)
        await_topic(connection, topic, len(transactional_ids))
        for partition, transactional_id in enumerate(transactional_ids):
            late = start(connection, transactional_id)
            assert produce(connection, late, (topic, partition), records_of(late), version=10) == (0, 0)
            producers.append(late)
    return producers
