"""Transactions over the wire: producers, readers, crashes, and the features that clients use.

`compat_tests` compare the responses of each API and version with Apache Kafka's.
"""

import itertools
import time

import pytest

from odradek.coordinator.partitioning import partition_for
from odradek.coordinator.transactions.records import (
    TransactionLogValue,
    TransactionLogValuePartitionsSchema,
    transaction_record,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.describe_transactions import DescribeTransactionsRequest
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.messages.list_transactions import ListTransactionsRequest
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesRequestFeatureUpdateKey
from odradek.protocol.records import build_batch, iter_batches, iter_records, read_header
from odradek.server.tests.wire import LATEST, Wire, request_frame, until
from odradek.testing import OdradekBroker

PROPERTIES = {
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "num.partitions": "2",
}
READ_COMMITTED = 1
TOPIC, GROUP = "ledger", "readers"
_names = (f"transactional-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def shared():
    with OdradekBroker(PROPERTIES) as broker:
        yield broker


@pytest.fixture
def topic(shared):
    name = f"topic-{next(_names)}"
    with Wire(shared.port) as wire:
        wire.create_topic(name, partitions=2)
    return name


@pytest.fixture
def broker():
    """A broker of the test's own, which it may stop and start."""
    with OdradekBroker(PROPERTIES) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic(TOPIC, partitions=2)
        yield broker


class Producer:
    """A transactional producer that sends one request at a time, of transaction version 2 unless one is given."""

    def __init__(self, port, topic, name=None, version=2, timeout_ms=60_000):
        self.wire = Wire(port)
        self.topic = topic
        self.name = name or next(_names)
        self.version = version
        self.sequences = {}
        await_coordinator(self.wire, self.name)
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=timeout_ms)

        def initialize():
            answer = self.wire.ask(request, 5)
            return answer if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS else None

        answer = until(initialize)
        assert answer.error_code == 0
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, *partitions):
        topics = [AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=self.topic, partitions=list(partitions))]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        (answer,) = self.wire.ask(request, 3).results_by_topic_v3_and_below
        return {row.partition_index: row.partition_error_code for row in answer.results_by_partition}

    def batch(self, *values, partition=0):
        first = self.sequences.get(partition, 0)
        self.sequences[partition] = first + len(values)
        return build_batch(
            ((int(time.time() * 1000), b"k", value, ()) for value in values),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=first,
            transactional=True,
        )

    def request(self, *parts):
        """A Produce request with a batch for each (partition, batch) pair."""
        data = [ProduceRequestPartitionProduceData(index=partition, records=batch) for partition, batch in parts]
        topics = [ProduceRequestTopicProduceData(name=self.topic, partition_data=data)]
        return ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=10_000, topic_data=topics)

    def produce(self, *values, partition=0, version=None):
        request = self.request((partition, self.batch(*values, partition=partition)))
        version = version or (12 if self.version == 2 else 11)
        return self.wire.ask(request, version).responses[0].partition_responses[0]

    def end(self, commit=True):
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=commit
        )
        if self.version < 2:
            return self.wire.ask(request, 4).error_code
        answer = self.wire.ask(request, 5)
        if not answer.error_code:
            if (answer.producer_id, answer.producer_epoch) != (self.id, self.epoch):
                self.sequences.clear()
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer.error_code

    def commit_offset(self, offset, version=5, partition=0):
        positions = [TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)]
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self.topic, partitions=positions)],
        )
        (answer,) = self.wire.ask(request, version).topics
        return answer.partitions[0].error_code

    @property
    def state(self):
        (answer,) = self.wire.ask(DescribeTransactionsRequest(transactional_ids=[self.name])).transaction_states
        return answer.transaction_state


def await_coordinator(wire, name, key_type=1):
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
    until(lambda: wire.ask(request, 4).coordinators[0].error_code == 0)
    if key_type == 1:
        until(lambda: wire.ask(ListTransactionsRequest()).error_code == 0)


def committed_values(wire, topic, partition=0):
    """Values that a read_committed consumer returns, and the partition's last stable offset."""
    request = Wire.fetch_request(topic, 0, partition)
    request.isolation_level = READ_COMMITTED
    answer = wire.ask(request, 11).responses[0].partitions[0]
    assert answer.error_code == 0
    aborted = sorted((one.first_offset, one.producer_id) for one in answer.aborted_transactions)
    values, skipping = [], set()
    for batch in iter_batches(bytes(answer.records or b"")):
        header = read_header(batch)
        while aborted and aborted[0][0] <= header.last_offset:
            skipping.add(aborted.pop(0)[1])
        if header.is_control:
            skipping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipping):
            values += [record.value for record in iter_records(batch)]
    return values, answer.last_stable_offset


def committed_offset(wire, topic, partition=0):
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])])
    return wire.ask(request, 8).groups[0].topics[0].partitions[0].committed_offset


# -- producers and readers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_only_committed_records_are_returned(shared, topic, version):
    producer = Producer(shared.port, topic, version=version)
    with Wire(shared.port) as wire:
        for number, commit in enumerate([True, False, True]):
            if version < 2:
                assert producer.add(0, 1) == {0: 0, 1: 0}
            for partition in (0, 1):
                assert producer.produce(b"%d" % number, partition=partition).error_code == 0
            assert committed_values(wire, topic)[0] == [b"0"][:number], "open transactions are not returned"
            assert producer.end(commit) == 0
        for partition in (0, 1):
            assert committed_values(wire, topic, partition) == ([b"0", b"2"], 6)


def test_a_marker_wakes_a_waiting_reader(shared, topic):
    producer = Producer(shared.port, topic)
    producer.produce(b"a")
    with Wire(shared.port) as wire:
        # Longer than the client waits for a response.
        request = Wire.fetch_request(topic, 0, max_wait_ms=600_000, min_bytes=1)
        request.isolation_level = READ_COMMITTED
        wire.send(request, 11)
        assert producer.end() == 0
        answer = wire.receive(request, 11).responses[0].partitions[0]
        assert answer.records is not None
        assert answer.last_stable_offset == 2


def test_the_latest_offset_by_isolation(shared, topic):
    producer = Producer(shared.port, topic)
    producer.produce(b"a", b"b")
    asked = ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=LATEST)

    def latest(isolation_level):
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsRequestListOffsetsTopic(name=topic, partitions=[asked])],
        )
        return producer.wire.ask(request, 7).topics[0].partitions[0].offset

    assert (latest(0), latest(1)) == (2, 0)
    producer.end()
    assert (latest(0), latest(1)) == (3, 3)


def test_later_batches_of_a_transaction_are_refused_after_its_end(shared, topic):
    """The first batch is verified, and later ones are not; after the end a batch is refused."""
    producer = Producer(shared.port, topic)
    for number in range(5):
        assert producer.produce(b"%d" % number).base_offset == number
    stale = producer.request((0, producer.batch(b"late")))
    assert producer.end() == 0
    answer = producer.wire.ask(stale, 12).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.produce(b"next").base_offset == 6


def test_a_partition_that_is_named_twice_gets_the_last_batch(shared, topic):
    producer = Producer(shared.port, topic)
    first = producer.batch(b"first")
    producer.sequences.clear()
    request = producer.request((0, first), (1, producer.batch(b"other", partition=1)), (0, producer.batch(b"last")))
    rows = producer.wire.ask(request, 12).responses[0].partition_responses
    assert [(row.index, row.error_code) for row in rows] == [(1, 0), (0, 0)]
    producer.end()
    with Wire(shared.port) as wire:
        assert committed_values(wire, topic)[0] == [b"last"]
        assert committed_values(wire, topic, 1)[0] == [b"other"]


def test_the_last_of_two_plain_batches_for_a_partition_is_appended(shared, topic):
    def batch(value):
        return build_batch([(int(time.time() * 1000), b"k", value, ())])

    data = [ProduceRequestPartitionProduceData(index=0, records=batch(value)) for value in (b"x", b"y")]
    topics = [ProduceRequestTopicProduceData(name=topic, partition_data=[one]) for one in data]
    with Wire(shared.port) as wire:
        answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 9)
        assert [len(one.partition_responses) for one in answer.responses] == [1]
        assert committed_values(wire, topic)[0] == [b"y"]


def test_offsets_take_effect_with_the_transaction(shared, topic):
    with Wire(shared.port) as wire:
        await_coordinator(wire, GROUP, key_type=0)
        producer = Producer(shared.port, topic)
        assert producer.commit_offset(5) == 0
        assert committed_offset(wire, topic) == -1
        producer.end()
        assert committed_offset(wire, topic) == 5
        assert producer.commit_offset(9) == 0
        producer.end(commit=False)
        assert committed_offset(wire, topic) == 5


def test_old_clients_must_add_offsets_to_the_transaction(shared, topic):
    with Wire(shared.port) as wire:
        await_coordinator(wire, GROUP, key_type=0)
        producer = Producer(shared.port, topic, version=0)
        assert producer.commit_offset(5, version=3) == ErrorCode.INVALID_TXN_STATE
        assert producer.commit_offset(5, version=4) == ErrorCode.TRANSACTION_ABORTABLE
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, group_id=GROUP
        )
        assert producer.wire.ask(request, 3).error_code == 0
        assert producer.commit_offset(5, version=3) == 0
        producer.end()
        assert committed_offset(wire, topic) == 5


def test_every_offset_is_answered(shared, topic):
    """Unknown topics have their own error, other topics that of the transaction."""
    with Wire(shared.port) as wire:
        await_coordinator(wire, GROUP, key_type=0)
    producer = Producer(shared.port, topic, version=0)
    position = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = TxnOffsetCommitRequest(
        transactional_id=producer.name,
        group_id=GROUP,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[position]) for name in (topic, "no-such-topic")],
    )
    answer = producer.wire.ask(request, 3)
    assert {one.name: one.partitions[0].error_code for one in answer.topics} == {
        topic: ErrorCode.INVALID_TXN_STATE,
        "no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_offsets_may_be_added_before_the_offsets_topic_exists(broker):
    """An old producer adds the group to the transaction before it finds the group's coordinator."""
    producer = Producer(broker.port, TOPIC, version=0)
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, group_id=GROUP
    )
    assert producer.wire.ask(request, 3).error_code == 0
    await_coordinator(producer.wire, GROUP, key_type=0)
    until(lambda: producer.commit_offset(5, version=3) == 0)
    assert producer.end() == 0
    assert committed_offset(producer.wire, TOPIC) == 5


def test_no_partition_is_added_if_one_does_not_exist(shared, topic):
    producer = Producer(shared.port, topic, version=0)
    missing, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.add(0, 10_000) == {0: other, 10_000: missing}
    assert producer.add(-1, 0) == {-1: missing, 0: other}
    assert producer.add(0) == {0: ErrorCode.NONE}


def test_clients_cannot_add_internal_topics(shared, topic):
    producer = Producer(shared.port, topic, version=0)
    producer.topic = "__transaction_state"
    assert producer.add(0) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_a_transaction_of_a_deleted_topic_is_completed(shared, topic):
    """Deleted partitions need no markers."""
    producer = Producer(shared.port, topic)
    producer.produce(b"a")
    with Wire(shared.port) as wire:
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequestDeleteTopicState(name=topic)], timeout_ms=10_000)
        assert wire.ask(request).responses[0].error_code == 0
    assert producer.end() == 0
    until(lambda: producer.state == "CompleteCommit")


def test_a_deleted_coordinator_topic_is_created_again(broker):
    """FindCoordinator creates it again, empty."""
    producer = Producer(broker.port, TOPIC)
    with Wire(broker.port) as wire:
        await_coordinator(wire, GROUP, key_type=0)
        until(lambda: producer.commit_offset(5) == 0)
        assert producer.end() == 0
        for name in ("__consumer_offsets", "__transaction_state"):
            request = DeleteTopicsRequest(topics=[DeleteTopicsRequestDeleteTopicState(name=name)], timeout_ms=5000)
            assert wire.ask(request).responses[0].error_code == 0
        await_coordinator(wire, GROUP, key_type=0)
        assert committed_offset(wire, TOPIC) == -1
        producer = Producer(broker.port, TOPIC)
        until(lambda: producer.commit_offset(6) == 0)
        assert producer.end() == 0
        until(lambda: committed_offset(wire, TOPIC) == 6)


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_coordinator_topic_cannot_grow(broker, validate_only):
    """In other partitions the state would not be found: committed offsets would be -1, transactions unknown."""
    producer = Producer(broker.port, TOPIC)
    with Wire(broker.port) as wire:
        await_coordinator(wire, GROUP, key_type=0)
        until(lambda: producer.commit_offset(5) == 0)
        assert producer.end() == 0
        until(lambda: committed_offset(wire, TOPIC) == 5)
        assert producer.produce(b"a").error_code == 0
        asked = [
            CreatePartitionsRequestCreatePartitionsTopic(name=name, count=99, assignments=None)
            for name in ("__consumer_offsets", "__transaction_state")
        ]
        request = CreatePartitionsRequest(topics=asked, timeout_ms=5000, validate_only=validate_only)
        answers = {one.name: (one.error_code, one.error_message) for one in wire.ask(request).results}
        for name, (code, text) in answers.items():
            assert code == ErrorCode.POLICY_VIOLATION
            assert text.startswith(f"{name} keeps its ")
        assert len(answers) == 2
        assert committed_offset(wire, TOPIC) == 5
    assert producer.end() == 0


def test_a_transaction_past_its_timeout_is_aborted(shared, topic):
    producer = Producer(shared.port, topic, timeout_ms=1)
    producer.produce(b"a")
    until(lambda: producer.state == "CompleteAbort")
    with Wire(shared.port) as wire:
        assert committed_values(wire, topic) == ([], 2)
    assert producer.end() in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)


def test_transactions_with_flush_before_acks():
    """Each request, with acks=0 too, is completed in a later reactor iteration."""
    with OdradekBroker({**PROPERTIES, "flush.before.acks": "true"}) as broker, Wire(broker.port) as wire:
        wire.create_topic(TOPIC, partitions=2)
        producer = Producer(broker.port, TOPIC)
        silent = producer.request((0, producer.batch(b"unheard")))
        silent.acks = 0
        producer.wire.send(silent, 12)
        assert producer.produce(b"b").error_code == 0
        assert producer.produce(b"c", partition=1).error_code == 0
        assert producer.end() == 0
        until(lambda: producer.state == "CompleteCommit")
        assert producer.produce(b"d").error_code == 0
        assert producer.end(commit=False) == 0
        until(lambda: producer.state == "CompleteAbort")
        assert committed_values(wire, TOPIC) == ([b"unheard", b"b"], 5)
        assert "unexpected error" not in broker.log_text()


# -- restarts --------------------------------------------------------------------------------------------------------


def test_an_open_transaction_outlives_a_crash(broker):
    producer = Producer(broker.port, TOPIC)
    with Wire(broker.port) as wire:
        await_coordinator(wire, GROUP, key_type=0)
    assert producer.produce(b"before").error_code == 0
    assert producer.commit_offset(7) == 0
    broker.restart(clean=False)
    producer.wire = Wire(broker.port)
    await_coordinator(producer.wire, producer.name)
    with Wire(broker.port) as wire:
        assert committed_values(wire, TOPIC) == ([], 0)
        assert producer.produce(b"after").error_code == 0
        assert producer.end() == 0
        assert committed_values(wire, TOPIC) == ([b"before", b"after"], 3)
        until(lambda: committed_offset(wire, TOPIC) == 7)


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_before_a_crash_is_completed_after_it(broker, commit):
    """Only the record of the decision exists, as after a crash before the first marker."""
    producer = Producer(broker.port, TOPIC)
    producer.produce(b"a", partition=0)
    producer.produce(b"b", partition=1)
    with Wire(broker.port) as wire:
        decide(wire, producer, commit)
    broker.restart(clean=False)
    with Wire(broker.port) as wire:
        await_coordinator(wire, producer.name)
        producer.wire = wire
        until(lambda: producer.state == ("CompleteCommit" if commit else "CompleteAbort"))
        assert committed_values(wire, TOPIC) == ([b"a"] if commit else [], 2)
        assert committed_values(wire, TOPIC, 1) == ([b"b"] if commit else [], 2)


def decide(wire, producer, commit):
    """Write the record of a decision without the transaction's coordinator."""
    value = TransactionLogValue(
        producer_id=producer.id,
        previous_producer_id=producer.id,
        next_producer_id=-1,
        producer_epoch=producer.epoch + 1,
        transaction_timeout_ms=60_000,
        transaction_status=2 if commit else 3,
        transaction_partitions=[TransactionLogValuePartitionsSchema(topic=producer.topic, partition_ids=[0, 1])],
        transaction_last_update_timestamp_ms=1,
        transaction_start_timestamp_ms=1,
        client_transaction_version=2,
    )
    record = transaction_record(producer.name, value, 1)
    batch = build_batch([(int(time.time() * 1000), record.key, record.value, ())])
    data = ProduceRequestPartitionProduceData(index=partition_for(producer.name, 2), records=batch)
    topics = [ProduceRequestTopicProduceData(name="__transaction_state", partition_data=[data])]
    answer = as_admin(wire, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def as_admin(wire, request, version):
    """Send a request with the client id that may write to internal topics. Return the response."""
    wire._correlation_id += 1
    wire.socket.sendall(request_frame(request, version, wire._correlation_id, b"__admin_client"))
    return wire.receive(request, version)


def test_a_fenced_producer_stays_fenced_after_a_crash(broker):
    old = Producer(broker.port, TOPIC, name="one")
    old.produce(b"a")
    new = Producer(broker.port, TOPIC, name="one")
    assert new.epoch > old.epoch
    broker.restart(clean=False)
    old.wire = Wire(broker.port)
    await_coordinator(old.wire, "one")
    assert old.produce(b"zombie").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end() == ErrorCode.PRODUCER_FENCED
    assert committed_values(old.wire, TOPIC)[0] == []


# -- features ------------------------------------------------------------------------------------------------------


def features(wire, version=4):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = wire.ask(request, version)
    return (
        {one.name: (one.min_version, one.max_version) for one in answer.supported_features},
        {one.name: one.max_version_level for one in answer.finalized_features},
        answer.finalized_features_epoch,
    )


def update(wire, level, kind=1, *, version=1, feature="transaction.version", validate_only=False):
    asked = UpdateFeaturesRequestFeatureUpdateKey(
        feature=feature, max_version_level=level, upgrade_type=kind, allow_downgrade=kind != 1
    )
    answer = wire.ask(UpdateFeaturesRequest(feature_updates=[asked], validate_only=validate_only), version)
    return answer.error_code


def test_features_of_a_new_cluster(shared):
    with Wire(shared.port) as wire:
        assert features(wire) == ({"transaction.version": (0, 2)}, {"transaction.version": 2}, 0)
        assert features(wire, 3)[0] == {}, "older clients cannot read a feature that may be at level 0"
        assert features(wire, 3)[1] == {"transaction.version": 2}


def test_version_0_of_update_features_lowers_nothing(shared):
    """Version 0 has `allow_downgrade` for this, which Kafka's controller ignores."""
    with Wire(shared.port) as wire:
        assert update(wire, 1, 2, version=0) == ErrorCode.INVALID_UPDATE_VERSION
        assert update(wire, 2, 1, version=0) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_changed_feature_outlives_a_restart(broker, version):
    upgrade, downgrade = 1, 2
    refused = ErrorCode.INVALID_UPDATE_VERSION
    with Wire(broker.port) as wire:
        assert update(wire, 1, upgrade, version=version) == refused, "lower than the current level"
        assert update(wire, 3, upgrade, version=version) == refused, "not supported"
        assert update(wire, -1, downgrade, version=version) == refused
        assert update(wire, 1, feature="metadata.version", version=version) == refused
        assert update(wire, 1, 0, version=version) == refused, "no such type"
        assert update(wire, 1, downgrade, version=version, validate_only=True) == 0
        assert features(wire)[1:] == ({"transaction.version": 2}, 0)
        assert update(wire, 1, downgrade, version=version) == 0
        assert update(wire, 2, downgrade, version=version) == refused, "higher than the current level"
        assert features(wire)[1:] == ({"transaction.version": 1}, 1)
    broker.restart()
    with Wire(broker.port) as wire:
        assert features(wire)[1:] == ({"transaction.version": 1}, 1)
        assert update(wire, 0, downgrade, version=version) == 0
        assert features(wire)[1:] == ({}, 2)
        assert update(wire, 2, version=version) == 0
        assert features(wire)[1:] == ({"transaction.version": 2}, 3)


def test_the_feature_level_determines_the_version_of_records(broker):
    """At feature level 0 an older broker must be able to read the record, which has version 0."""

    def value_versions(wire):
        versions = []
        for index in (0, 1):
            records = wire.fetch("__transaction_state", partition=index).records
            for batch in iter_batches(bytes(records or b"")):
                for record in iter_records(batch):
                    assert record.value is not None
                    versions.append(int.from_bytes(record.value[:2], "big"))
        return sorted(versions)

    with Wire(broker.port) as wire:
        Producer(broker.port, TOPIC)
        assert value_versions(wire) == [1]
        assert update(wire, 0, 2) == 0
        Producer(broker.port, TOPIC)
        assert value_versions(wire) == [0, 1]
