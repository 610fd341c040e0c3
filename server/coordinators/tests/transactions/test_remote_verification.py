"""AddPartitionsToTxn to coordinators on other brokers: batches, conflicts, failures."""

from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
    AddPartitionsToTxnResponse,
)
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Endpoint
from odradek.replication.replicas.tests.test_partition import leader
from odradek.server.brokers.channel import TcpBrokerChannel, TcpBrokerChannels
from odradek.server.brokers.channel_pool import ChannelPool
from odradek.server.coordinators.remote_verification import RemoteCoordinators
from odradek.server.coordinators.tests.transactions.test_transaction_verification import Coordinators, result, verifier
from odradek.server.coordinators.transaction_verification import ClientSupport, TransactionWriter
from odradek.server.tests.broker_network import FakeNetwork

COORDINATOR = 2
KEY = AddPartitionsToTxnRequest.api_key


def transaction(name, epoch=3, verify_only=True, producer_id=7):
    return AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=verify_only,
        topics=[AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="t", partitions=[0])],
    )


class World:
    def __init__(self):
        self.network = FakeNetwork()
        self.metadata = ClusterMetadata()
        for broker_id in (1, 2, 3):
            endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092)
            self.metadata.put_broker(BrokerMetadata(broker_id, (endpoint,)))
        channels = TcpBrokerChannels(
            "PLAINTEXT", connect=self.network.connect, clock=self.network.clock, slices=self.network.slices
        )
        pool = ChannelPool(self.metadata, channels, client_id="1", timeout_ms=3000)
        self.coordinators = RemoteCoordinators(pool, self.network.clock)

    def send(self, *arguments, broker_id=COORDINATOR):
        results: list[Any] = []
        self.coordinators.add_or_verify(broker_id, transaction(*arguments)).addBoth(results.append)
        return results

    def connect(self, versions=(0, 5)):
        self.network.clock.advance(0)
        link = self.network.accept()
        link.answer_versions((KEY, *versions))
        return link


def answer(link, *codes):
    """Answer each transaction of the request with a code. Return the names."""
    request = link.take()
    transactions = request.message.transactions
    results = [result(one, code) for one, code in zip(transactions, codes, strict=True)]
    link.answer(AddPartitionsToTxnResponse(results_by_transaction=results), request)
    return [one.transactional_id for one in transactions]


@pytest.fixture
def world():
    return World()


def code(results):
    (one,) = results
    return one if isinstance(one, ErrorCode) else one.topic_results[0].results_by_partition[0].partition_error_code


def test_pending_transactions_are_one_request_per_coordinator(world):
    a, b, c = world.send("a"), world.send("b"), world.send("c", broker_id=3)
    world.network.clock.advance(0)
    first, second = world.network.links
    for link in (first, second):
        link.accept()
        link.answer_versions((KEY, 0, 4))
    assert answer(first, 0, 48) == ["a", "b"]
    assert answer(second, 0) == ["c"]
    assert [code(one) for one in (a, b, c)] == [0, 48, 0]


def test_one_request_per_coordinator_is_in_flight(world):
    world.send("a")
    link = world.connect()
    first = link.take()
    b, again = world.send("b"), world.send("a")
    world.network.clock.advance(0)
    assert link.is_silent
    link.answer(AddPartitionsToTxnResponse(results_by_transaction=[]), first)
    assert answer(link, 0, 0) == ["b", "a"]
    assert [code(b), code(again)] == [0, 0]


def test_the_request_contains_the_transaction(world):
    world.send("a", 5, False)
    request = world.connect().take()
    assert request.version == 5
    assert request.message.transactions == [transaction("a", 5, False)]


@pytest.mark.parametrize(
    ("epochs", "older", "newer"),
    [
        ((3, 3), ErrorCode.NETWORK_EXCEPTION, 0),
        ((3, 4), ErrorCode.INVALID_PRODUCER_EPOCH, 0),
        ((4, 3), 0, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_of_two_pending_transactions_with_one_id_one_fails(world, epochs, older, newer):
    first, second = [world.send("a", epoch) for epoch in epochs]
    link = world.connect()
    assert answer(link, 0) == ["a"]
    assert [code(first), code(second)] == [older, newer]


def test_epochs_of_different_producer_ids_are_not_compared(world):
    """After the last epoch of its producer id a producer gets the next one, with epoch 0."""
    first, second = world.send("a", 32_766, True, 7), world.send("a", 0, True, 8)
    link = world.connect()
    assert answer(link, 0) == ["a"]
    assert [code(first), code(second)] == [ErrorCode.NETWORK_EXCEPTION, 0]


def test_a_lost_connection_is_a_network_exception(world):
    a, b = world.send("a"), world.send("b")
    world.connect().lose()
    assert [code(a), code(b)] == [ErrorCode.NETWORK_EXCEPTION] * 2
    c = world.send("c")
    world.network.clock.advance(0)
    world.network.clock.advance(0.05)
    assert answer(world.connect(), 0) == ["c"]
    assert code(c) == 0


def test_a_missing_response_is_a_network_exception(world):
    a = world.send("a")
    world.connect()
    world.network.clock.advance(3)
    assert code(a) == ErrorCode.NETWORK_EXCEPTION


def test_a_coordinator_that_is_gone_is_not_available(world):
    a = world.send("a")
    world.metadata.remove_broker(COORDINATOR)
    world.metadata.publish()
    world.network.clock.advance(0)
    assert code(a) == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (999, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_the_whole_request_is_the_error_of_each_transaction(world, error, expected):
    a, b = world.send("a"), world.send("b")
    world.connect().answer(AddPartitionsToTxnResponse(error_code=error))
    assert [code(a), code(b)] == [expected] * 2


def test_transactions_of_a_request_that_cannot_be_sent_fail(world, monkeypatch, caplog):
    a, b = world.send("a"), world.send("b")

    async def send(*_):
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(TcpBrokerChannel, "send", send)
        world.network.clock.advance(0)
    assert [code(a), code(b)] == [ErrorCode.NETWORK_EXCEPTION] * 2
    assert "unexpected" in caplog.text
    c = world.send("c")
    assert answer(world.connect(), 0) == ["c"]
    assert code(c) == 0


def test_a_transaction_without_a_result_fails(world):
    a = world.send("a")
    world.connect().answer(AddPartitionsToTxnResponse())
    assert code(a) == ErrorCode.UNKNOWN_SERVER_ERROR


# With the verifier


def verify(world, *, leader_of_state, support=ClientSupport.ABORTABLE):
    partition = leader()
    coordinators = Coordinators(ErrorCode.NONE)
    one = verifier(world.network.clock, partition, coordinators, leader_of_state=leader_of_state)
    one._services.config.node_id = 1
    one._services.metadata.brokers = {1: None, COORDINATOR: None}
    one._remote = world.coordinators
    outcomes: list[Any] = []
    verified = one.verify(TransactionWriter("x", 7, 3, support), {partition: 0})
    if hasattr(verified, "addBoth"):
        verified.addBoth(outcomes.append)
    else:
        outcomes.append(verified)
    return partition, coordinators, outcomes


def test_the_verifier_asks_the_coordinator_on_another_broker(world):
    partition, coordinators, outcomes = verify(world, leader_of_state=COORDINATOR)
    link = world.connect()
    request = link.take()
    (sent,) = request.message.transactions
    assert sent.verify_only
    assert not outcomes
    answered = result(sent, ErrorCode.TRANSACTION_ABORTABLE)
    link.answer(AddPartitionsToTxnResponse(results_by_transaction=[answered]), request)
    (verified,) = outcomes
    assert verified.error(partition).code is ErrorCode.TRANSACTION_ABORTABLE
    assert not coordinators.asked


def test_the_verifier_adds_partitions_for_new_clients(world):
    verify(world, leader_of_state=COORDINATOR, support=ClientSupport.ADDS)
    assert not world.connect().take().message.transactions[0].verify_only


def test_the_verifier_asks_its_own_coordinator_directly(world):
    partition, coordinators, (verified,) = verify(world, leader_of_state=1)
    assert verified.error(partition) is None
    assert len(coordinators.asked) == 1
    world.network.clock.advance(0)
    assert not world.network.links


def test_clients_retry_after_a_network_exception(world):
    partition, _, outcomes = verify(world, leader_of_state=COORDINATOR)
    world.connect().lose()
    assert outcomes[0].error(partition).code is ErrorCode.NOT_ENOUGH_REPLICAS
