"""Guards of Produce, InitProducerId, DescribeProducers, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

import pytest
from twisted.internet.defer import succeed

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsPartition,
    DeleteRecordsRequestDeleteRecordsTopic,
)
from odradek.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
)
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochRequestOffsetForLeaderTopic,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.server.authorization.tests.support import IDS, Guarded, cluster, topic, transaction
from odradek.server.handlers.coordinators.producers import describe_producers_error
from odradek.server.handlers.records.delete_records import delete_records_error
from odradek.server.handlers.records.list_offsets import list_offsets_error, offset_for_leader_epoch_error
from odradek.server.handlers.records.produce import produce_error
from odradek.server.request import NO_RESPONSE, CloseConnection
from odradek.server.security.authorization.rights import DECISIONS_PER_STEP

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
HANDLED = KafkaError(ErrorCode.CORRUPT_MESSAGE)
"""The error of rows that the handler gets, so that they can be told from the others."""

MIXES = [
    (["open"], [["open"]]),
    (["open", "hidden"], [["open"]]),
    (["hidden", "open", "absent"], [["open"]]),
    (["hidden"], []),
]
CODES = {"open": HANDLED.code, "hidden": REFUSED, "absent": REFUSED}


def plain_batch(**producer):
    return memoryview(build_batch([(0, b"k", b"v", ())], **producer))


TRANSACTIONAL = plain_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)


def make_produce(names, version=9, records=None, acks=-1, transactional_id=None):
    batch = plain_batch() if records is None else records
    data = [ProduceRequestPartitionProduceData(index=0, records=batch)]
    key = (lambda name: {"topic_id": IDS.get(name, b"?" * 16)}) if version >= 13 else (lambda name: {"name": name})
    topics = [ProduceRequestTopicProduceData(**key(name), partition_data=data) for name in names]
    return ProduceRequest(acks=acks, transactional_id=transactional_id, topic_data=topics)


def produce_handled(request):
    return succeed(NO_RESPONSE if request.acks == 0 else produce_error(request, 9, HANDLED))


def produced_codes(answer):
    return {topic.name: [row.error_code for row in topic.partition_responses] for topic in answer.responses}


@pytest.mark.parametrize(("names", "passed"), MIXES)
def test_produce(names, passed):
    guarded = Guarded("Produce", 9, topic("WRITE"), respond=produce_handled)
    request = make_produce(names)
    assert produced_codes(guarded.ask(request)) == {name: [CODES[name]] for name in names}
    assert [[one.name for one in rest.topic_data] for rest in guarded.requests] == passed
    assert [one.name for one in request.topic_data] == names, "the head of the request may be added to the fast path"


def test_produce_by_id():
    guarded = Guarded("Produce", 13, topic("WRITE"), respond=produce_handled)
    answer = guarded.ask(make_produce(["open", "hidden", "unknown"], version=13))
    codes = {topic.topic_id: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {IDS["open"]: HANDLED.code, IDS["hidden"]: REFUSED, b"?" * 16: ErrorCode.UNKNOWN_TOPIC_ID}
    assert [[one.topic_id for one in rest.topic_data] for rest in guarded.requests] == [[IDS["open"]]], (
        "a partition may exist before, or for longer than, its topic in the metadata"
    )


def test_a_producer_repeats_a_batch_of_an_unknown_topic_before_later_ones():
    """The metadata may have the topic before the next request on the connection."""
    guarded = Guarded("Produce", 13, respond=produce_handled)
    guarded.ask(make_produce(["hidden"], version=13, records=plain_batch(producer_id=1, producer_epoch=0)))
    assert not guarded.context.refused_batches
    guarded.ask(make_produce(["unknown"], version=13, records=plain_batch(producer_id=1, producer_epoch=0)))
    assert guarded.context.refused_batches


def test_a_refused_partition_that_is_repeated_has_one_row():
    guarded = Guarded("Produce", 9, respond=produce_handled)
    assert produced_codes(guarded.ask(make_produce(["hidden", "hidden"]))) == {"hidden": [REFUSED]}


@pytest.mark.parametrize(("names", "passed"), MIXES[1:])
def test_produce_without_a_response_closes_the_connection_after_the_other_appends(names, passed):
    guarded = Guarded("Produce", 9, topic("WRITE"), respond=produce_handled)
    try:
        outcome = guarded.ask(make_produce(names, acks=0)).value
    except CloseConnection as error:
        outcome = error
    assert isinstance(outcome, CloseConnection)
    assert [[one.name for one in rest.topic_data] for rest in guarded.requests] == passed


@pytest.mark.parametrize("transactional_id", [None, "hidden"])
def test_a_transactional_batch_needs_the_right_to_its_transactional_id(transactional_id):
    guarded = Guarded("Produce", 9, topic("WRITE"), transaction("WRITE"), respond=produce_handled)
    request = make_produce(["hidden"], records=TRANSACTIONAL, transactional_id=transactional_id)
    with pytest.raises(KafkaError) as refused:
        guarded.ask(request)
    assert refused.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    request = make_produce(["open"], records=TRANSACTIONAL, transactional_id="open")
    assert produced_codes(guarded.ask(request)) == {"open": [HANDLED.code]}


def test_a_transactional_id_without_a_transactional_batch_needs_no_right():
    guarded = Guarded("Produce", 9, topic("WRITE"), respond=produce_handled)
    assert produced_codes(guarded.ask(make_produce(["open"], transactional_id="hidden"))) == {"open": [HANDLED.code]}


def test_a_large_produce_is_divided_in_slices_and_completed_after_the_loss_of_its_connection():
    names = [f"topic-{number}" for number in range(100 * DECISIONS_PER_STEP)]
    guarded = Guarded("Produce", 9, topic("WRITE", names[0]), topic("WRITE", names[-1]), respond=produce_handled)
    answer = guarded._handle(guarded.services, guarded.context, make_produce(names))
    assert not guarded.requests
    assert len(guarded.authorizer.asked) <= 8 * DECISIONS_PER_STEP
    answer.addErrback(lambda failure: None).cancel()
    while not guarded.requests:
        guarded.clock.advance(0)
    assert [one.name for one in guarded.requests[0].topic_data] == [names[0], names[-1]]


@pytest.mark.parametrize(
    ("allowed", "transactional_id", "code"),
    [
        ([], None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ([cluster("IDEMPOTENT_WRITE")], None, None),
        ([topic("WRITE", "any topic")], None, None),
        ([topic("READ")], None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ([transaction("WRITE")], "open", None),
        ([transaction("WRITE")], "hidden", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ([transaction("DESCRIBE")], "open", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_a_producer_id(allowed, transactional_id, code):
    guarded = Guarded("InitProducerId", 5, *allowed, respond=lambda request: InitProducerIdResponse())
    request = InitProducerIdRequest(transactional_id=transactional_id)
    if code is None:
        assert guarded.ask(request) == InitProducerIdResponse()
        return
    with pytest.raises(KafkaError) as refused:
        guarded.ask(request)
    assert (refused.value.code, guarded.requests) == (code, [])


@pytest.mark.parametrize(("names", "passed"), MIXES)
def test_described_producers_keep_the_order_of_the_topics(names, passed):
    guarded = Guarded(
        "DescribeProducers", 0, topic("READ"), respond=lambda request: describe_producers_error(request, 0, HANDLED)
    )
    topics = [DescribeProducersRequestTopicRequest(name=name, partition_indexes=[0, 1]) for name in names]
    answer = guarded.ask(DescribeProducersRequest(topics=topics))
    assert [(one.name, [row.error_code for row in one.partitions]) for one in answer.topics] == [
        (name, [CODES[name]] * 2) for name in names
    ]
    assert [[one.name for one in rest.topics] for rest in guarded.requests] == passed


def test_producers_of_a_topic_with_an_invalid_name_need_no_right():
    guarded = Guarded("DescribeProducers", 0, respond=lambda request: "handled")
    request = DescribeProducersRequest(topics=[DescribeProducersRequestTopicRequest(name="b a d")])
    assert guarded.ask(request) == "handled"


def list_offsets(names):
    partitions = [ListOffsetsRequestListOffsetsPartition(partition_index=0)]
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        timeout_ms=7,
        topics=[ListOffsetsRequestListOffsetsTopic(name=name, partitions=partitions) for name in names],
    )


@pytest.mark.parametrize(("names", "passed"), MIXES)
def test_listed_offsets(names, passed):
    guarded = Guarded(
        "ListOffsets", 11, topic("DESCRIBE"), respond=lambda request: list_offsets_error(request, 11, HANDLED)
    )
    answer = guarded.ask(list_offsets(names))
    assert {one.name: one.partitions[0].error_code for one in answer.topics} == {name: CODES[name] for name in names}
    assert guarded.requests == [list_offsets(rest) for rest in passed]


def epoch_ends(names):
    partitions = [OffsetForLeaderEpochRequestOffsetForLeaderPartition(partition=0)]
    return OffsetForLeaderEpochRequest(
        replica_id=3,
        topics=[OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=name, partitions=partitions) for name in names],
    )


@pytest.mark.parametrize(("names", "passed"), MIXES)
def test_ends_of_epochs(names, passed):
    guarded = Guarded(
        "OffsetForLeaderEpoch",
        4,
        topic("DESCRIBE"),
        respond=lambda request: offset_for_leader_epoch_error(request, 4, HANDLED),
    )
    answer = guarded.ask(epoch_ends(names))
    assert {one.topic: one.partitions[0].error_code for one in answer.topics} == {name: CODES[name] for name in names}
    assert guarded.requests == [epoch_ends(rest) for rest in passed]


def test_a_broker_gets_the_ends_of_all_epochs():
    guarded = Guarded("OffsetForLeaderEpoch", 4, cluster("CLUSTER_ACTION"), respond=lambda request: "all")
    assert guarded.ask(epoch_ends(["open", "hidden"])) == "all"


def delete_records(names):
    partitions = [DeleteRecordsRequestDeleteRecordsPartition(partition_index=0)]
    return DeleteRecordsRequest(
        timeout_ms=7,
        topics=[DeleteRecordsRequestDeleteRecordsTopic(name=name, partitions=partitions) for name in names],
    )


@pytest.mark.parametrize(("names", "passed"), MIXES)
def test_deleted_records(names, passed):
    guarded = Guarded(
        "DeleteRecords", 2, topic("DELETE"), respond=lambda request: delete_records_error(request, 2, HANDLED)
    )
    answer = guarded.ask(delete_records(names))
    assert {one.name: one.partitions[0].error_code for one in answer.topics} == {name: CODES[name] for name in names}
    assert {row.low_watermark for one in answer.topics for row in one.partitions} == {-1}
    assert guarded.requests == [delete_records(rest) for rest in passed]
