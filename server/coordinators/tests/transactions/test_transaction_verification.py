"""Verification of a transaction's first batch, with scripted responses of the coordinator."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.log.validation.batch import Origin
from odradek.protocol.batches.control_records import ControlType, build_control_batch
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponseAddPartitionsToTxnResult,
    AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.replication.replicas.partition import Partition
from odradek.replication.replicas.tests.test_partition import leader
from odradek.server.coordinators.transaction_verification import (
    PARTITIONS_PER_STEP,
    ClientSupport,
    TransactionVerifier,
    TransactionWriter,
    _Batches,
)

ID, EPOCH = 7, 3


class Coordinators:
    """A stand-in for the transaction coordinators. Each of `answers` is an error code, or a Deferred of one."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def index_of(self, transactional_id):
        return 0

    def run_on(self, index, decide):
        asked = []
        decide(SimpleNamespace(add_or_verify_partitions=lambda *args: asked.append(args[0])), None, 0)
        self.asked += asked
        answer = self.answers.pop(0)
        if isinstance(answer, Deferred):
            return answer.addCallback(lambda code: result(asked[0], code))
        return result(asked[0], answer)


def result(transaction, code):
    return AddPartitionsToTxnResponseAddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code
                    )
                    for index in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def partition():
    return leader()


def verifier(clock, partition, coordinators, *, leader_of_state=1, enabled=True):
    services = SimpleNamespace(
        reactor=clock,
        monotonic_ms=lambda: int(clock.seconds() * 1000),
        replicas=SimpleNamespace(get=lambda topic, index: partition),
        transactions=coordinators,
        metadata=SimpleNamespace(
            partition=lambda topic, index: SimpleNamespace(leader=leader_of_state), brokers={1: None}
        ),
        config=SimpleNamespace(
            transaction_partition_verification_enable=enabled,
            add_partitions_to_txn_retry_backoff_ms=20,
            add_partitions_to_txn_retry_backoff_max_ms=100,
            request_timeout_ms=30_000,
        ),
    )
    return TransactionVerifier(services)


def batch(producer_id=ID, epoch=EPOCH, sequence=0):
    return build_batch(
        [(0, b"k", b"v", ())], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


def produce(*batches):
    data = [
        ProduceRequestPartitionProduceData(index=index, records=memoryview(one)) for index, one in enumerate(batches)
    ]
    return ProduceRequest(
        transactional_id="x", topic_data=[ProduceRequestTopicProduceData(name="t", partition_data=data)]
    )


def append(partition, verified, sequence=0):
    return partition.append_as_leader(
        memoryview(batch(sequence=sequence)), required_acks=-1, now_ms=0, is_verified=verified.may_append(partition)
    )


def mark(partition, epoch):
    marker = build_control_batch(
        ControlType.COMMIT, producer_id=ID, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=0
    )
    partition.append_as_leader(memoryview(marker), required_acks=-1, now_ms=0, origin=Origin.COORDINATOR)


@pytest.mark.parametrize(("version", "verify_only"), [(9, True), (11, True), (12, False)])
def test_the_first_batch_is_verified_and_the_next_is_not(clock, partition, version, verify_only):
    coordinators = Coordinators(ErrorCode.NONE)
    verification = verifier(clock, partition, coordinators)
    verified = verification.verify_produce(produce(batch()), version)
    assert verified.error(partition) is None
    assert append(partition, verified).first_offset == 0
    assert [asked.verify_only for asked in coordinators.asked] == [verify_only]
    verified = verification.verify_produce(produce(batch(sequence=1)), version)
    assert append(partition, verified, 1).first_offset == 1
    assert len(coordinators.asked) == 1


def test_a_marker_between_response_and_append_refuses_the_batch(clock, partition):
    """The coordinator's response was for a transaction that has ended."""
    asked = Deferred()
    waiting = verifier(clock, partition, Coordinators(asked)).verify_produce(produce(batch()), 11)
    mark(partition, EPOCH)
    asked.callback(ErrorCode.NONE)
    done = []
    waiting.addCallback(done.append)
    with pytest.raises(KafkaError) as caught:
        append(partition, done[0])
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE


def test_the_previous_transactions_marker_does_not_refuse_the_batch(clock, partition):
    asked = Deferred()
    waiting = verifier(clock, partition, Coordinators(asked)).verify_produce(produce(batch()), 12)
    mark(partition, EPOCH)
    asked.callback(ErrorCode.NONE)
    done = []
    waiting.addCallback(done.append)
    assert append(partition, done[0]).first_offset == 1


def test_the_response_to_an_earlier_verification_permits_no_append(clock, partition):
    first, second = Deferred(), Deferred()
    verification = verifier(clock, partition, Coordinators(first, second))
    done = []
    verification.verify_produce(produce(batch()), 11).addCallback(done.append)
    mark(partition, EPOCH)
    verification.verify_produce(produce(batch()), 11).addCallback(done.append)
    first.callback(ErrorCode.NONE)
    assert not done[0].may_append(partition)
    second.callback(ErrorCode.NONE)
    assert done[1].may_append(partition)


ERRORS = [
    (ErrorCode.TRANSACTION_ABORTABLE, (48, 120, 120)),
    (ErrorCode.INVALID_TXN_STATE, (48, 48, 48)),
    (ErrorCode.PRODUCER_FENCED, (47, 47, 47)),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, (49, 49, 49)),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, (19, 19, 19)),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, (19, 19, 19)),
    (ErrorCode.NOT_COORDINATOR, (19, 19, 19)),
    (ErrorCode.OPERATION_NOT_ATTEMPTED, (19, 19, 19)),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (3, 3, 3)),
]


@pytest.mark.parametrize(("code", "expected_codes"), ERRORS)
def test_errors_by_version(clock, partition, code, expected_codes):
    for version, expected in zip((10, 11, 12), expected_codes, strict=True):
        verified = verifier(clock, partition, Coordinators(code)).verify_produce(produce(batch()), version)
        assert verified.error(partition).code == expected


def test_a_busy_transaction_is_an_error_at_once_for_old_clients(clock, partition):
    busy = Coordinators(ErrorCode.CONCURRENT_TRANSACTIONS)
    verified = verifier(clock, partition, busy).verify_produce(produce(batch()), 11)
    assert verified.error(partition).code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_busy_transaction_is_retried(clock, partition):
    busy = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    coordinators = Coordinators(*busy, ErrorCode.NONE)
    waiting = verifier(clock, partition, coordinators).verify_produce(produce(batch()), 12)
    done = []
    waiting.addCallback(done.append)
    clock.pump([0.001, 0.002])
    assert not done
    clock.advance(0.004)
    assert append(partition, done[0]).first_offset == 0
    assert not clock.getDelayedCalls()


def test_retries_of_a_busy_transaction_are_limited(clock, partition):
    coordinators = Coordinators(*[ErrorCode.CONCURRENT_TRANSACTIONS] * 10)
    done = []
    verifier(clock, partition, coordinators).verify_produce(produce(batch()), 12).addCallback(done.append)
    clock.pump([0.001] * 150)
    assert done[0].error(partition).code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(coordinators.asked) == 10, "retries after 1, 2, 4, 8 and 16 ms, then every 20 ms"
    assert not clock.getDelayedCalls()


def test_retries_end_when_the_client_disconnects(clock, partition):
    coordinators = Coordinators(*[ErrorCode.CONCURRENT_TRANSACTIONS] * 10)
    waiting = verifier(clock, partition, coordinators).verify_produce(produce(batch()), 12)
    failures = []
    waiting.addErrback(failures.append)
    waiting.cancel()
    assert len(failures) == 1
    assert not clock.getDelayedCalls()


def test_an_old_epoch_is_refused_without_the_coordinator(clock, partition):
    mark(partition, EPOCH + 1)
    verified = verifier(clock, partition, Coordinators()).verify_produce(produce(batch()), 12)
    assert verified.error(partition).code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", [11, 12, 13])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_partition_that_appears_after_the_verification_is_refused_as_missing(clock, partition, version, enabled):
    """The coordinator was not asked about it: without an error a batch might be outside of the transaction."""
    refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no replica")

    def miss(topic, index):
        if index == 1:
            raise refusal
        return partition

    verification = verifier(clock, partition, Coordinators(ErrorCode.NONE), enabled=enabled)
    verification._services.replicas = SimpleNamespace(get=miss, get_by_id=miss)
    request = produce(batch(), batch())
    request.topic_data[0].topic_id = partition.topic_id
    verified = verification.verify_produce(request, version)
    assert verified.error(Partition("t", partition.topic_id, 1, 1)) is refusal
    assert verified.error(partition) is None


def test_without_a_coordinator_the_batch_is_refused(clock, partition):
    verification = verifier(clock, partition, Coordinators(), leader_of_state=-1)
    verified = verification.verify_produce(produce(batch()), 12)
    assert verified.error(partition).code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_several_producers_in_one_request_are_refused(clock, partition):
    with pytest.raises(KafkaError) as caught:
        verifier(clock, partition, Coordinators()).verify_produce(produce(batch(), batch(producer_id=8)), 11)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_request_without_transactional_batches_needs_no_verification(clock, partition):
    plain = build_batch([(0, b"k", b"v", ())])
    assert verifier(clock, partition, Coordinators()).verify_produce(produce(plain, b"", b"short"), 12) is None


def test_the_batches_of_many_topics_are_collected_in_steps(clock, partition):
    found = []

    def find(topic, index):
        found.append(topic)
        return topic

    verification = verifier(clock, partition, Coordinators())
    verification._services.replicas = SimpleNamespace(get=find)
    request = produce(batch())
    data = request.topic_data[0].partition_data
    request.topic_data = [ProduceRequestTopicProduceData(name=str(n), partition_data=data) for n in range(1000)]
    steps = verification._collect_transactional(request, 12, _Batches({}, set(), {}))
    counts = [0, *(len(found) for _ in steps), len(found)]
    assert counts[-1] == 1000
    assert max(after - before for before, after in pairwise(counts)) <= PARTITIONS_PER_STEP


def test_verification_may_be_disabled(clock, partition):
    """Batches of old clients are not verified; partitions of new clients' batches are still added."""
    verification = verifier(clock, partition, Coordinators(ErrorCode.NONE), enabled=False)
    assert append(partition, verification.verify_produce(produce(batch()), 11)).first_offset == 0
    mark(partition, EPOCH)
    verified = verification.verify_produce(produce(batch(sequence=1)), 12)
    assert append(partition, verified, 1).first_offset == 2


@pytest.mark.parametrize(
    ("of", "versions"),
    [(ClientSupport.for_produce, {10: "OLD", 11: "ABORTABLE", 12: "ADDS"}),
     (ClientSupport.for_offset_commit, {3: "OLD", 4: "ABORTABLE", 5: "ADDS"})],
)  # fmt: skip
def test_support_by_version(of, versions):
    assert {version: of(version).name for version in versions} == versions


def test_offset_commits_are_verified_without_a_sequence(clock, partition):
    coordinators = Coordinators(ErrorCode.NONE)
    verification = verifier(clock, partition, coordinators)
    verified = verification.verify(TransactionWriter("x", ID, EPOCH, ClientSupport.ADDS), {partition: -1})
    assert verified.may_append(partition)
