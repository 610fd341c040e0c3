"""Simulated clients against a scripted broker: they retry, filter, assign and keep state as Kafka's clients do."""

from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from odradek.protocol.codec import decode, encode
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.protocol.messages.init_producer_id import InitProducerIdResponse
from odradek.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from odradek.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.protocol.messages.produce import (
    ProduceResponse,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from odradek.protocol.records import ControlType, build_batch, build_control_batch, iter_records, read_header
from odradek.simulation.api import ConnectionLost
from odradek.simulation.clients.consumers import membership
from odradek.simulation.clients.consumers.fetching import Fetcher, OutOfRange
from odradek.simulation.clients.consumers.offsets import commit
from odradek.simulation.clients.link import Link, Versions
from odradek.simulation.clients.producers.idempotent import IdempotentProducer
from odradek.simulation.clients.producers.plain import PlainProducer
from odradek.simulation.history import History, Isolation, Outcome, copied_value, label_of, origin_of
from odradek.simulation.reads.log_reader import read_log

TOPIC_ID = bytes(range(16))
A = ("a", 0)


class ScriptedWorld:
    """A world in which no time passes. Each request of an API gets the next response of its script, then the last."""

    def __init__(self, most_requests=60):
        self.random = Random(1)
        self.is_ending = False
        self.scripts = {}
        self.requests = []
        self.most_requests = most_requests
        self.clock = self
        self.time_s = 0.0

    def seconds(self):
        return self.time_s

    def now_ms(self):
        return 1000 + int(self.time_s * 1000)

    def sleep(self, seconds):
        self.time_s += seconds
        return succeed(None)

    def connect(self, address=None):
        return succeed(ScriptedConnection(self))


class ScriptedConnection:
    def __init__(self, world):
        self.world = world
        self.is_lost = False

    def request(self, message, version, *, client_id):
        world = self.world
        encode(message, version)
        world.requests.append(message)
        world.is_ending |= len(world.requests) >= world.most_requests
        script = world.scripts[type(message).__name__.removesuffix("Request")]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if answer is ConnectionLost:
            self.is_lost = True
            return fail(ConnectionLost("scripted"))
        response = answer(message) if callable(answer) else answer
        return succeed(decode(type(response), version, bytes(encode(response, version))))

    def send_without_answer(self, message, version, *, client_id):
        self.world.requests.append(message)

    def close(self):
        self.is_lost = True


def metadata(request):
    return MetadataResponse(topics=[MetadataResponseTopic(name=t.name, topic_id=TOPIC_ID) for t in request.topics])


def produced(code=ErrorCode.NONE, offset=0):
    def answer(request):
        rows = [
            ProduceResponsePartitionProduceResponse(index=row.index, error_code=code, base_offset=offset)
            for topic in request.topic_data
            for row in topic.partition_data
        ]
        topic = request.topic_data[0]
        return ProduceResponse(
            responses=[
                ProduceResponseTopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=rows
                )
            ]
        )

    return answer


@pytest.fixture
def world():
    world = ScriptedWorld()
    world.scripts["Metadata"] = [metadata]
    world.scripts["InitProducerId"] = [InitProducerIdResponse(producer_id=7, producer_epoch=0)]
    return world


@pytest.fixture
def history(world):
    return History(world.now_ms)


def run(coroutine):
    results: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(results.append)
    assert results and not hasattr(results[0], "raiseException"), results
    return results[0]


def batches_sent(world):
    """Return producer id, epoch, sequence and first label of each batch, in the order of sending."""
    found = []
    for request in world.requests:
        for topic in getattr(request, "topic_data", ()):
            for row in topic.partition_data:
                header = read_header(row.records)
                first = next(iter_records(row.records))
                identity = (header.producer_id, header.producer_epoch, header.base_sequence)
                found.append((*identity, label_of(first.value or b"")))
    return found


# Producers


def idempotent(world, history):
    run(IdempotentProducer(world, history, "p", Random(5), [A]).run())
    return batches_sent(world)


def test_an_idempotent_producer_repeats_unanswered_batches_with_their_sequences(world, history):
    world.scripts["Produce"] = [produced(), ConnectionLost, produced()]
    sent = idempotent(world, history)
    assert sent[1] == sent[2]
    sequences = [sequence for _, _, sequence, _ in dict.fromkeys(sent)]
    assert sequences == sorted(set(sequences))
    assert {send.outcome for send in history.sends} == {Outcome.OK}


def test_an_idempotent_producer_begins_an_epoch_when_the_broker_has_lost_earlier_batches(world, history):
    world.scripts["Produce"] = [produced(), produced(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), produced()]
    sent = idempotent(world, history)
    refused = sent[1]
    again = next(batch for batch in sent[2:] if batch[3] == refused[3])
    assert refused[:2] == (7, 0)
    assert again[:3] == (7, 1, 0)
    assert [text for _, _, text in history.odd] == [f"sequence {refused[2]} is out of order in ('a', 0)"]


def test_a_lost_response_to_a_plain_producer_is_an_unknown_outcome(world, history):
    world.scripts["Produce"] = [ConnectionLost]
    run(PlainProducer(world, history, "p", Random(3), [A]).run())
    assert history.sends
    assert {send.outcome for send in history.sends} == {Outcome.UNKNOWN}


def test_a_refused_batch_of_a_plain_producer_has_failed(world, history):
    world.scripts["Produce"] = [produced(ErrorCode.MESSAGE_TOO_LARGE)]
    run(PlainProducer(world, history, "p", Random(3), [A]).run())
    assert {send.outcome for send in history.sends if send.acks} == {Outcome.FAILED}
    assert {send.outcome for send in history.sends if not send.acks} <= {Outcome.UNKNOWN}


def test_an_error_that_a_valid_batch_must_never_get_is_recorded(world, history):
    world.scripts["Produce"] = [produced(ErrorCode.CORRUPT_MESSAGE)]
    run(PlainProducer(world, history, "p", Random(3), [A]).run())
    assert "produce to a-0: CORRUPT_MESSAGE" in {text for _, _, text in history.odd}


# Consumers


def batch(offset, *values, **fields):
    return build_batch([(1, None, value, ()) for value in values], base_offset=offset, **fields)


def fetched(records=b"", aborted=(), code=ErrorCode.NONE, high_watermark=100):
    row = FetchResponsePartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark,
        aborted_transactions=[
            FetchResponseAbortedTransaction(producer_id=producer_id, first_offset=offset)
            for producer_id, offset in aborted
        ],
        records=records,
    )
    topic = FetchResponseFetchableTopicResponse(topic="a", topic_id=TOPIC_ID, partitions=[row])
    return FetchResponse(responses=[topic])


def fetcher(world, history, isolation, position=0):
    link = Link(world, history, "c", Random(2), Versions(Random(2), {1: (12, 18), 3: (10, 13)}))
    found = Fetcher(link, history, Random(2), isolation)
    found.assign({A: position})
    return found


def transaction(first, producer_id, kind, *values):
    """Return a batch and its marker."""
    marker = build_control_batch(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1,
        base_offset=first + len(values),
    )
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return batch(first, *values, **fields) + marker


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [(Isolation.READ_COMMITTED, [b"c", b"d"]), (Isolation.READ_UNCOMMITTED, [b"a", b"b", b"c", b"d"])],
)
def test_a_committed_reader_skips_only_aborted_transactions(world, history, isolation, expected):
    records = (
        transaction(0, 5, ControlType.ABORT, b"a", b"b")
        + transaction(3, 5, ControlType.COMMIT, b"c")
        + batch(5, b"d")
    )
    world.scripts["Fetch"] = [fetched(records, aborted=[(5, 0)])]
    reader = fetcher(world, history, isolation)
    assert [record.value for _, record in run(reader.poll(0))] == expected
    assert reader.positions == {A: 6}
    assert (history.polls[0].fetch_offset, history.polls[0].next_offset) == (0, 6)


def test_a_reader_skips_records_before_its_position_in_a_batch(world, history):
    world.scripts["Fetch"] = [fetched(batch(0, b"a", b"b", b"c"))]
    reader = fetcher(world, history, Isolation.READ_UNCOMMITTED, position=1)
    assert [record.offset for _, record in run(reader.poll(0))] == [1, 2]


def test_a_reader_refuses_a_batch_with_a_wrong_checksum(world, history):
    records = bytearray(batch(0, b"a"))
    records[-1] ^= 1
    world.scripts["Fetch"] = [fetched(bytes(records))]
    reader = fetcher(world, history, Isolation.READ_UNCOMMITTED)
    assert run(reader.poll(0)) == []
    assert "corrupt batch" in history.odd[0][2]


def test_a_reader_that_is_given_a_position_does_not_go_back(world, history):
    world.scripts["Fetch"] = [fetched(batch(0, b"a", b"b")), fetched(batch(0, b"c"))]
    reader = fetcher(world, history, Isolation.READ_UNCOMMITTED)
    run(reader.poll(0))
    reader.assign({A: 0})
    run(reader.poll(0))
    first, second = history.polls
    assert (first.next_offset, second.fetch_offset) == (2, 0)
    assert first.assignment != second.assignment


def test_the_high_watermark_of_a_whole_read_belongs_to_its_last_records(world):
    world.scripts["Fetch"] = [fetched(batch(0, b"a", b"b"), high_watermark=2), fetched(high_watermark=1)]
    connection: Any = ScriptedConnection(world)
    log = run(read_log(connection, "c", A, Isolation.READ_UNCOMMITTED, is_last_try=False))
    assert (log.end_offset, log.high_watermark) == (2, 2)


def test_a_position_out_of_range_is_reported(world, history):
    world.scripts["Fetch"] = [fetched(code=ErrorCode.OFFSET_OUT_OF_RANGE)]
    with pytest.raises(AssertionError, match="OutOfRange"):
        run(fetcher(world, history, Isolation.READ_UNCOMMITTED).poll(0))
    assert OutOfRange(A).partition == A


# Groups


def answered(code):
    row = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="a", topic_id=TOPIC_ID, partitions=[row])])


class Member:
    generation = 1
    member_id = "m"
    instance_id: str | None = None


@pytest.mark.parametrize(
    ("before", "outcome"),
    [
        ((), Outcome.FAILED),
        ((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,), Outcome.FAILED),
        ((ErrorCode.COORDINATOR_NOT_AVAILABLE,), Outcome.UNKNOWN),
        ((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), Outcome.UNKNOWN),
        ((ConnectionLost,), Outcome.UNKNOWN),
    ],
)
def test_a_commit_may_be_stored_by_an_attempt_before_the_refusal(world, history, before, outcome):
    codes = [*before, ErrorCode.UNKNOWN_MEMBER_ID]
    world.scripts["OffsetCommit"] = [code if code is ConnectionLost else answered(code) for code in codes]
    link = Link(world, history, "c", Random(2), Versions(Random(2), {8: (2, 10), 3: (10, 13)}))
    assert run(commit(link, "g", {A: 4}, Member())) == ErrorCode.UNKNOWN_MEMBER_ID
    assert [one.outcome for one in history.commits] == [outcome]


def test_a_leader_assigns_each_partition_to_one_member():
    partitions = [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    shares = membership._ranges(["y", "x"], partitions)
    assert shares == {"x": [("a", 0), ("a", 1), ("b", 0)], "y": [("a", 2)]}
    for owned in shares.values():
        assert membership._assigned(membership._assignment(owned)) == owned
    assert membership._assigned(b"") == []


# Copies


def test_a_copy_names_its_origin():
    copied = copied_value(b"c.1", ("a-b", 3), 42, b"p.7|padding")
    assert origin_of(copied) == (("a-b", 3), 42, b"p.7")
    assert label_of(copied) == b"c.1"
    assert origin_of(b"p.7|padding") is None
