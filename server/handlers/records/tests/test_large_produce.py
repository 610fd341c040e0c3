"""Produce to many partitions: appended in slices, with one response, and completed if the client disconnects."""

import struct
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.store import run_now
from odradek.replication.replicas.partition import Partition
from odradek.replication.tests.support import Cluster
from odradek.server.coordinators import transaction_verification
from odradek.server.coordinators.tests.transactions import test_transaction_verification as verification_tests
from odradek.server.dispatch import Dispatch
from odradek.server.fetching.purgatory import CompletionQueue, DelayedOperation
from odradek.server.handlers.records import produce as produce_module
from odradek.server.handlers.records.leaders import LeaderNode
from odradek.server.handlers.records.produce import BYTES_PER_STEP, PARTITIONS_PER_STEP, produce
from odradek.server.network.connection import Connection
from odradek.server.network.tests.test_connection import Transport
from odradek.server.request import NO_RESPONSE, CloseConnection, RequestContext
from odradek.server.tests.background import completions, run_iteration
from odradek.server.work.slices import SLICE_S, Slices

E = ErrorCode
VERSION = 9
MANY = 2 * PARTITIONS_PER_STEP


class World:
    """A broker's parts. Each reading of the clock takes half a slice, so that an iteration does little work."""

    def __init__(self):
        self.clock, self.now_s = Clock(), 0.0
        self.cluster = Cluster()
        create(self.cluster, new("t", MANY))
        self.services = SimpleNamespace(
            replicas=self.cluster.replicas,
            metadata=self.cluster.image,
            now_ms=lambda: 0,
            reactor=self.clock,
            slices=Slices(self.clock, self._tick),
            produce_completions=completions(self.clock),
            verifier=SimpleNamespace(),
        )

    def _tick(self):
        self.now_s += SLICE_S / 2
        return self.now_s

    def iterate(self):
        """Run one reactor iteration. Return whether there was anything to do."""
        return run_iteration(self.clock)

    def produce(self, request):
        """Send a Produce request. Return the handler's outcome, and the list of responses and failures."""
        outcome = produce(self.services, context(), request)
        answers: list[Any] = []
        if isinstance(outcome, Deferred):
            outcome.addBoth(answers.append)
        else:
            answers.append(outcome)
        return outcome, answers

    def finish(self):
        while self.iterate():
            pass

    def ends(self):
        """The log end of each partition."""
        return [self.cluster.replicas.get("t", index).log.log_end_offset for index in range(MANY)]

    def replicate(self):
        """Give each partition a follower in the in-sync replicas."""
        for index in range(MANY):
            partition = self.cluster.replicas.get("t", index)
            partition.apply(PartitionMetadata(1, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)


@pytest.fixture
def world():
    return World()


def context():
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = VERSION
    return context


def row(index, count=1, value=b"v"):
    records = memoryview(build_batch([(0, None, value, ())] * count))
    return ProduceRequestPartitionProduceData(index=index, records=records)


def request(*data, acks=-1, timeout_ms=1000, **fields):
    topic = ProduceRequestTopicProduceData(name="t", partition_data=list(data))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic], **fields)


def to_all(**fields):
    return request(*(row(index) for index in range(MANY)), **fields)


def rows(response):
    [topic] = response.responses
    return topic.partition_responses


def test_many_partitions_are_appended_to_in_slices_and_answered_together(world):
    _, answers = world.produce(to_all())
    appended = [sum(world.ends())]
    while world.iterate():
        appended.append(sum(world.ends()))
    assert appended[-1] == MANY
    assert max(after - before for before, after in zip([0, *appended], appended, strict=False)) <= 3
    assert [(one.index, one.error_code, one.base_offset) for one in rows(answers[0])] == [
        (index, 0, 0) for index in range(MANY)
    ]


@pytest.mark.parametrize(("count", "is_in_slices"), [(3, False), (4, True), (PARTITIONS_PER_STEP, True)])
def test_many_bytes_for_a_few_partitions_are_appended_in_slices(world, count, is_in_slices):
    value = bytes(BYTES_PER_STEP // 3 - 100)
    _, answers = world.produce(request(*(row(index, value=value) for index in range(count))))
    appended = [sum(world.ends())]
    while world.iterate():
        appended.append(sum(world.ends()))
    assert appended[-1] == count
    most = max(after - before for before, after in zip([0, *appended], appended, strict=False))
    assert most == (2 if is_in_slices else count)
    assert [(one.index, one.error_code, one.base_offset) for one in rows(answers[0])] == [
        (index, 0, 0) for index in range(count)
    ]


def test_topics_without_partitions_are_answered_in_slices(world):
    topics = [ProduceRequestTopicProduceData(name=f"t{number}", partition_data=[]) for number in range(1000)]
    _, answers = world.produce(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
    assert answers == []
    iterations = 0
    while world.iterate():
        iterations += 1
    assert iterations > 100
    assert [(one.name, one.partition_responses) for one in answers[0].responses] == [
        (topic.name, []) for topic in topics
    ]


def test_the_last_batch_of_a_repeated_partition_is_appended(world):
    data = [row(index) for index in range(MANY)]
    _, answers = world.produce(request(*data, row(3, count=5), row(4, count=2), row(3, count=7)))
    world.finish()
    expected = [1] * MANY
    expected[3], expected[4] = 7, 2
    assert world.ends() == expected
    assert sorted(one.index for one in rows(answers[0])) == list(range(MANY))


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_partitions_are_unknown_after_their_topic_is_deleted(world, iterations):
    _, answers = world.produce(to_all())
    for _ in range(iterations):
        world.iterate()
    run_now(world.cluster.topics.delete_topics(DeleteTopicsRequest(topic_names=["t"]), 1))
    world.finish()
    codes = [one.error_code for one in rows(answers[0])]
    assert len(codes) == MANY
    appended = codes.count(E.NONE)
    assert codes == [E.NONE] * appended + [E.UNKNOWN_TOPIC_OR_PARTITION] * (MANY - appended)


def test_with_acks_0_a_failed_append_closes_the_connection(world):
    _, answers = world.produce(to_all(acks=0))
    world.finish()
    assert answers == [NO_RESPONSE]
    _, answers = world.produce(request(*(row(index) for index in range(MANY + 1)), acks=0))
    world.finish()
    assert answers[0].check(CloseConnection)
    assert world.ends() == [2] * MANY


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("iterations", range(4))
def test_a_request_is_completed_although_its_client_has_disconnected(world, acks, iterations):
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(to_all(acks=acks), VERSION)
    connection = Connection(Transport(), Dispatch(world.services), context())
    connection.frame_received(struct.pack(">i", len(content)) + content)
    for _ in range(iterations):
        world.iterate()
    connection.connection_lost()
    world.finish()
    assert world.ends() == [1] * MANY


def test_the_wait_for_replicas_ends_with_the_client(world):
    world.replicate()
    outcome, answers = world.produce(to_all())
    world.finish()
    assert answers == []
    outcome.cancel()
    assert answers[0].check(CancelledError)
    assert not any(partition.watchers for partition in world.cluster.replicas)
    assert not world.clock.getDelayedCalls()


def test_the_wait_for_replicas_checks_each_partition_once(world, monkeypatch):
    world.replicate()
    _, answers = world.produce(to_all())
    world.finish()
    looks = []
    has_reached = Partition.has_reached

    def counted(partition, offset, appended_epoch=None):
        looks.append(partition.index)
        return has_reached(partition, offset, appended_epoch)

    monkeypatch.setattr(Partition, "has_reached", counted)
    for index in range(MANY):
        assert answers == []
        world.cluster.replicas.get("t", index).update_follower(2, 1, 0, 0)
    assert [one.error_code for one in rows(answers[0])] == [0] * MANY
    assert looks == list(range(MANY))


def test_partitions_that_are_not_replicated_in_time_have_a_timeout_error(world):
    world.replicate()
    _, answers = world.produce(to_all())
    world.finish()
    world.cluster.replicas.get("t", 1).update_follower(2, 1, 0, 0)
    world.clock.advance(1)
    codes = [one.error_code for one in rows(answers[0])]
    assert codes == [E.REQUEST_TIMED_OUT, E.NONE] + [E.REQUEST_TIMED_OUT] * (MANY - 2)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("the followers fetch", E.NONE),
        ("the leaderships are lost", E.NOT_LEADER_OR_FOLLOWER),
        ("the timeout expires", E.REQUEST_TIMED_OUT),
    ],
)
def test_many_partitions_are_checked_in_steps(world, monkeypatch, end, code):
    """The wait for replicas begins, is retried, and ends."""
    most = 4
    monkeypatch.setattr(produce_module, "_CHECKED_PER_STEP", most)
    world.replicate()
    checks = []
    has_reached = Partition.has_reached

    def counted(partition, offset, appended_epoch=None):
        checks.append(partition.index)
        return has_reached(partition, offset, appended_epoch)

    monkeypatch.setattr(Partition, "has_reached", counted)
    world.services.produce_completions = CompletionQueue(world.services.slices)
    _, answers = world.produce(to_all())

    def count_checks():
        counts = [len(checks)]
        while world.iterate():
            counts.append(len(checks))
        return max(after - before for before, after in pairwise(counts))

    assert count_checks() <= 2 * most
    assert len(checks) == MANY
    checks.clear()
    partitions = [world.cluster.replicas.get("t", index) for index in range(MANY)]
    for partition in partitions:
        if end == "the followers fetch":
            partition.update_follower(2, 1, 0, 0)
        elif end == "the leaderships are lost":
            partition.apply(PartitionMetadata(2, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)
    if end == "the timeout expires":
        [timer] = world.clock.getDelayedCalls()
        timer.reset(0)
    assert count_checks() <= 2 * most
    assert sorted(checks) == list(range(MANY))
    assert [one.error_code for one in rows(answers[0])] == [code] * MANY
    assert not any(partition.watchers for partition in partitions)


def test_the_leaders_of_many_partitions_are_found_in_steps(world, monkeypatch):
    """KIP-951."""
    for index in range(MANY):
        partition = world.cluster.replicas.get("t", index)
        partition.apply(PartitionMetadata(2, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)
    found = []

    def find(replicas, image, name, topic_id, index, listener):
        found.append(index)
        return LeaderNode(2, 7, "other", 9092, None)

    monkeypatch.setattr(produce_module, "find_leader", find)
    client = context()
    client.api_version = 12
    answers: list[Any] = []
    waiting = produce(world.services, client, to_all())
    assert isinstance(waiting, Deferred)
    waiting.addCallback(answers.append)
    counts = [len(found)]
    while world.iterate():
        counts.append(len(found))
    assert max(after - before for before, after in pairwise([0, *counts])) <= 3
    [response] = answers
    assert {(one.error_code, one.current_leader.leader_id) for one in rows(response)} == {(E.NOT_LEADER_OR_FOLLOWER, 2)}
    assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "other")]


def test_many_partitions_that_are_replicated_while_the_wait_begins_are_answered(world, monkeypatch):
    monkeypatch.setattr(produce_module, "_CHECKED_PER_STEP", 1)
    world.replicate()
    _, answers = world.produce(to_all())
    partitions = [world.cluster.replicas.get("t", index) for index in range(MANY)]
    while not all(partition.log.log_end_offset for partition in partitions):
        world.iterate()
    world.iterate()
    assert any(partition.watchers for partition in partitions)
    for partition in partitions:
        partition.update_follower(2, 1, 0, 0)
    world.finish()
    assert [one.error_code for one in rows(answers[0])] == [0] * MANY
    assert not any(partition.watchers for partition in partitions)


@pytest.mark.parametrize("count", [1, MANY])
def test_a_batch_is_appended_although_its_client_disconnects_during_the_verification(world, count):
    verification = Deferred()
    world.services.verifier = SimpleNamespace(verify_produce=lambda request, version: verification)
    data = [row(index) for index in range(count)]
    outcome, answers = world.produce(request(*data, transactional_id="x"))
    world.finish()
    outcome.cancel()
    assert answers[0].check(CancelledError)
    verification.callback(SimpleNamespace(error=lambda partition: None, may_append=lambda partition: True))
    world.finish()
    assert sum(world.ends()) == count


def test_requests_whose_verifications_end_together_are_appended_in_slices(world):
    """One response of a coordinator on another broker has the results of many transactions."""
    count = 50
    verifications = [Deferred() for _ in range(count)]
    waiting = iter(verifications)
    world.services.verifier = SimpleNamespace(verify_produce=lambda request, version: next(waiting))
    world.services.produce_completions = CompletionQueue(world.services.slices)
    answers = [world.produce(request(row(0), transactional_id="x"))[1] for _ in range(count)]
    for verification in verifications:
        verification.callback(SimpleNamespace(error=lambda partition: None, may_append=lambda partition: True))
    appended = [sum(world.ends())]
    while world.iterate():
        appended.append(sum(world.ends()))
    assert 0 < appended[0] <= 3
    assert max(after - before for before, after in pairwise(appended)) <= 3
    assert [rows(answer)[0].base_offset for [answer] in answers] == list(range(count))


def test_a_request_that_fails_when_it_is_woken_affects_no_other_and_not_the_append(world):
    """The failed request has the error; the others are woken, and the append is acknowledged."""
    partition = world.cluster.replicas.get("t", 0)
    outcomes: list[Any] = []
    for attempt in (lambda: None, lambda: 1 / 0, lambda: "woken"):
        operation = DelayedOperation(attempt, lambda: "late")
        operation.wait(world.clock, 1000, [partition]).addBoth(outcomes.append)
    _, [response] = world.produce(request(row(0)))
    assert [one.error_code for one in rows(response)] == [0]
    assert outcomes[0].check(ZeroDivisionError)
    assert outcomes[1:] == ["woken"]


def test_the_transaction_of_many_partitions_is_verified_in_slices(world, monkeypatch):
    """The coordinator gets one request, after the verification of all partitions has begun."""
    monkeypatch.setattr(transaction_verification, "PARTITIONS_PER_STEP", 2)
    coordinators = verification_tests.Coordinators(E.NONE)
    verifier = world.services.verifier = verification_tests.verifier(world.clock, None, coordinators)
    verifier._services.replicas, verifier._services.slices = world.cluster.replicas, world.services.slices
    batch = memoryview(verification_tests.batch())
    data = [ProduceRequestPartitionProduceData(index=index, records=batch) for index in range(MANY)]
    _, answers = world.produce(request(*data, transactional_id="x"))
    asked = [len(coordinators.asked)]
    while world.iterate():
        asked.append(len(coordinators.asked))
    assert asked[0] == 0
    assert [sorted(topic.partitions) for topic in coordinators.asked[0].topics] == [list(range(MANY))]
    assert asked[-1] == 1
    assert [one.error_code for one in rows(answers[0])] == [0] * MANY
    assert world.ends() == [1] * MANY
