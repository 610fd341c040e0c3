"""Guards of transactions."""

import pytest

from odradek.coordinator.transactions.admin import describe_error
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from odradek.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
)
from odradek.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from odradek.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.server.authorization.tests.support import Guarded, cluster, group, topic, transaction
from odradek.server.handlers.coordinators.transaction_offsets import txn_offset_commit_error

E = ErrorCode
REFUSED_ID = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
HANDLED = KafkaError(E.INVALID_TXN_STATE)


def add_partitions(*names, transactional_id="open"):
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_topics=[
            AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=name, partitions=[0, 9]) for name in names
        ],
    )


def added_codes(answer):
    return {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }


def test_partitions_are_added_if_the_client_may_write_to_all():
    guarded = Guarded("AddPartitionsToTxn", 3, transaction("WRITE"), topic("WRITE"), respond=lambda request: "added")
    assert guarded.ask(add_partitions("open")) == "added"
    refused = guarded.ask(add_partitions("open", "hidden", "absent"))
    assert added_codes(refused) == {
        ("open", 0): E.OPERATION_NOT_ATTEMPTED,
        ("open", 9): E.UNKNOWN_TOPIC_OR_PARTITION,
        **{(name, index): E.TOPIC_AUTHORIZATION_FAILED for name in ("hidden", "absent") for index in (0, 9)},
    }
    assert len(guarded.requests) == 1


def test_partitions_need_the_right_to_the_transactional_id_first():
    guarded = Guarded("AddPartitionsToTxn", 3, transaction("WRITE"), topic("WRITE"))
    with pytest.raises(KafkaError) as refused:
        guarded.ask(add_partitions("hidden", transactional_id="hidden"))
    assert refused.value.code == REFUSED_ID
    assert guarded.authorizer.asked == [transaction("WRITE", "hidden")]


def test_the_right_to_an_internal_topic_is_not_asked_for():
    guarded = Guarded("AddPartitionsToTxn", 3, transaction("WRITE"), topic("WRITE"), respond=lambda request: "handled")
    assert guarded.ask(add_partitions("open", "__consumer_offsets")) == "handled"
    assert topic("WRITE", "__consumer_offsets") not in guarded.authorizer.asked


def test_only_brokers_add_partitions_from_version_4_on():
    guarded = Guarded("AddPartitionsToTxn", 4, transaction("WRITE"), topic("WRITE"), respond=lambda request: "added")
    with pytest.raises(KafkaError) as refused:
        guarded.ask(AddPartitionsToTxnRequest())
    assert refused.value.code == E.CLUSTER_AUTHORIZATION_FAILED
    guarded.authorizer.grant(cluster("CLUSTER_ACTION"))
    assert guarded.ask(AddPartitionsToTxnRequest()) == "added"


@pytest.mark.parametrize(
    ("transactional_id", "group_id", "code"),
    [("open", "open", None), ("open", "hidden", E.GROUP_AUTHORIZATION_FAILED), ("hidden", "hidden", REFUSED_ID)],
)
def test_offsets_need_rights_to_the_transactional_id_and_to_the_group(transactional_id, group_id, code):
    response = AddOffsetsToTxnResponse()
    guarded = Guarded("AddOffsetsToTxn", 4, transaction("WRITE"), group("READ"), respond=lambda request: response)
    request = AddOffsetsToTxnRequest(transactional_id=transactional_id, group_id=group_id)
    if code is None:
        assert guarded.ask(request) is response
        return
    with pytest.raises(KafkaError) as refused:
        guarded.ask(request)
    assert (refused.value.code, guarded.requests) == (code, [])


def test_the_end_of_a_transaction_needs_the_right_to_its_id():
    guarded = Guarded("EndTxn", 5, transaction("WRITE"), respond=lambda request: EndTxnResponse())
    with pytest.raises(KafkaError) as refused:
        guarded.ask(EndTxnRequest(transactional_id="hidden"))
    assert refused.value.code == REFUSED_ID
    assert guarded.ask(EndTxnRequest(transactional_id="open")) == EndTxnResponse()


def commit(*names, transactional_id="open", group_id="open"):
    partitions = [TxnOffsetCommitRequestPartition(partition_index=0)]
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=7,
        producer_epoch=1,
        generation_id=3,
        member_id="m",
        group_instance_id="i",
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=partitions) for name in names],
    )


@pytest.mark.parametrize(
    ("names", "passed"), [(["open"], [["open"]]), (["hidden", "open"], [["open"]]), (["hidden", "absent"], [])]
)
def test_committed_offsets(names, passed):
    guarded = Guarded(
        "TxnOffsetCommit",
        5,
        transaction("WRITE"),
        group("READ"),
        topic("READ"),
        respond=lambda request: txn_offset_commit_error(request, 5, HANDLED),
    )
    answer = guarded.ask(commit(*names))
    codes = {one.name: [row.error_code for row in one.partitions] for one in answer.topics}
    assert codes == {name: [HANDLED.code if name == "open" else E.TOPIC_AUTHORIZATION_FAILED] for name in names}
    assert guarded.requests == [commit(*rest) for rest in passed]


@pytest.mark.parametrize(
    ("transactional_id", "group_id", "code"),
    [("hidden", "hidden", REFUSED_ID), ("open", "hidden", E.GROUP_AUTHORIZATION_FAILED)],
)
def test_a_commit_needs_rights_to_the_transactional_id_and_to_the_group(transactional_id, group_id, code):
    guarded = Guarded("TxnOffsetCommit", 5, transaction("WRITE"), group("READ"), topic("READ"))
    with pytest.raises(KafkaError) as refused:
        guarded.ask(commit("open", transactional_id=transactional_id, group_id=group_id))
    assert (refused.value.code, guarded.requests) == (code, [])


def describe(request):
    states = [describe_error(one, E.NONE) for one in request.transactional_ids]
    for state in states:
        state.topics = [DescribeTransactionsResponseTopicData(topic=name) for name in ("hidden", "open")]
    return DescribeTransactionsResponse(transaction_states=states)


@pytest.mark.parametrize(
    ("names", "passed"), [(["open"], [["open"]]), (["hidden", "open"], [["open"]]), (["hidden"], [])]
)
def test_described_transactions_omit_hidden_topics(names, passed):
    guarded = Guarded("DescribeTransactions", 0, transaction("DESCRIBE"), topic("DESCRIBE"), respond=describe)
    answer = guarded.ask(DescribeTransactionsRequest(transactional_ids=names))
    expected = {"open": (E.NONE, ["open"]), "hidden": (REFUSED_ID, [])}
    assert [
        (state.transactional_id, (state.error_code, [one.topic for one in state.topics]))
        for state in answer.transaction_states
    ] == [(name, expected[name]) for name in names]
    assert [request.transactional_ids for request in guarded.requests] == passed


def test_listed_transactions_are_filtered_silently():
    states = [ListTransactionsResponseTransactionState(transactional_id=name) for name in ("hidden", "open")]
    response = ListTransactionsResponse(transaction_states=states, unknown_state_filters=["x"])
    guarded = Guarded("ListTransactions", 2, transaction("DESCRIBE"), respond=lambda request: response)
    answer = guarded.ask(ListTransactionsRequest())
    assert [state.transactional_id for state in answer.transaction_states] == ["open"]
    assert answer.unknown_state_filters == ["x"]
    assert guarded.authorizer.audited == []
