"""Termination of a transaction while its producer, or another instance of it, goes on."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.init_producer_id import InitProducerIdResponse
from odradek.tools.kafka import transaction_changes
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.transaction_changes import terminate_transaction
from odradek.tools.kafka.transactions import DescribedTransaction

OPEN = DescribedTransaction("t", 7, 1, "Ongoing", 60_000, 1000, [("orders", 0)])
ENDING = OPEN._replace(producer_epoch=2, state="PrepareAbort")
ENDED = ENDING._replace(state="CompleteAbort", start_time_ms=None)


class Cluster:
    """Answers requests for producer ids with the given codes, and counts them."""

    def __init__(self, *codes):
        self.codes = list(codes)
        self.requests = 0

    def ask_coordinator(self, name, key_type, request, response_type):
        self.requests += 1
        return InitProducerIdResponse(error_code=self.codes.pop(0), producer_id=7, producer_epoch=3)


@pytest.fixture
def describe(monkeypatch):
    """Set the states that are described one after the other; the last one remains."""

    def set_states(*states):
        left = list(states)

        def take(cluster, names):
            state = left.pop(0) if len(left) > 1 else left[0]
            return {} if state is None else {"t": state}

        monkeypatch.setattr(transaction_changes, "describe_transactions", take)

    return set_states


def terminate(cluster):
    terminate_transaction(cluster, OPEN, lambda seconds: None)


def test_the_request_is_not_repeated(describe):
    describe(OPEN, ENDING, ENDING, ENDED)
    cluster = Cluster(ErrorCode.CONCURRENT_TRANSACTIONS)
    terminate(cluster)
    assert cluster.requests == 1


def test_a_transaction_of_a_new_instance_is_left_alone(describe):
    describe(OPEN, OPEN._replace(producer_epoch=3, start_time_ms=2000))
    cluster = Cluster(ErrorCode.CONCURRENT_TRANSACTIONS)
    terminate(cluster)
    assert cluster.requests == 1


@pytest.mark.parametrize("state", [None, ENDED, OPEN._replace(start_time_ms=2000), OPEN._replace(producer_epoch=2)])
def test_another_transaction_than_the_confirmed_one_is_refused(describe, state):
    describe(state)
    cluster = Cluster()
    with pytest.raises(RequestError, match="has ended or changed meanwhile"):
        terminate(cluster)
    assert cluster.requests == 0


def test_a_commit_is_no_termination(describe):
    describe(OPEN, OPEN._replace(state="PrepareCommit"))
    with pytest.raises(RequestError, match="was committed meanwhile"):
        terminate(Cluster(ErrorCode.CONCURRENT_TRANSACTIONS))


def test_an_abort_that_does_not_end(describe):
    describe(OPEN, OPEN)
    with pytest.raises(RequestError, match="CONCURRENT_TRANSACTIONS"):
        terminate(Cluster(ErrorCode.CONCURRENT_TRANSACTIONS))
