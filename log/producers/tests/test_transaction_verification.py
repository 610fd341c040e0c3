"""The first batch of a transaction on a partition is verified; no marker may come in between (KIP-890)."""

import pytest

from odradek.log.producers.state import ProducerState, Verification
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.errors import ErrorCode, KafkaError

OLD = ErrorCode.INVALID_PRODUCER_EPOCH
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
ID = 7


@pytest.fixture
def state() -> ProducerState:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    return ProducerState(fs, "/d", expiration_ms=1000)


def begin(
    state: ProducerState, epoch: int = 0, sequence: int = 0, adds: bool = True, now_ms: int = 50
) -> Verification | None:
    return state.begin_verification(ID, epoch, sequence, now_ms, adds_partition=adds)


def add(state: ProducerState, offset: int, *, epoch: int = 0, sequence: int = 0) -> None:
    state.add_data(ID, epoch, sequence, offset, offset, 50, True)


def mark(state: ProducerState, offset: int, *, epoch: int = 0) -> None:
    completed = state.add_marker(ID, epoch, 1, offset, 50, False)
    if completed is not None:
        state.complete(completed)


def sequence_error(state: ProducerState, sequence: int, epoch: int = 0) -> ErrorCode | None:
    try:
        state.check_data(ID, epoch, sequence, is_transactional=True, is_client=True)
    except KafkaError as error:
        return error.code
    return None


def test_an_open_transaction_needs_no_verification(state: ProducerState):
    verification = begin(state)
    assert state.verifications[ID] is verification
    add(state, 10)
    assert not state.verifications, "with the batch its transaction is open"
    assert begin(state) is None
    assert begin(state, epoch=1) is not None, "another epoch is another transaction"


def test_batches_that_wait_share_a_verification(state: ProducerState):
    assert begin(state, sequence=5) is begin(state, sequence=3)
    assert state.verifications[ID].lowest_sequence == 3
    begin(state, epoch=1, sequence=8)
    assert (state.verifications[ID].epoch, state.verifications[ID].lowest_sequence) == (1, 8)


def test_a_marker_in_between_ends_the_verification(state: ProducerState):
    """The coordinator's response is about the transaction that the marker ended."""
    begin(state, adds=False)
    mark(state, 10)
    assert not state.verifications


def test_a_marker_of_the_previous_transaction_does_not_end_the_verification(state: ProducerState):
    """If each transaction has its own epoch, the marker has that of the next one, whose verification continues."""
    add(state, 10, epoch=0)
    verification = begin(state, epoch=1)
    mark(state, 11, epoch=1)
    assert state.verifications[ID] is verification
    mark(state, 12, epoch=2)
    assert not state.verifications


def test_an_old_epoch_is_refused_at_once(state: ProducerState):
    add(state, 10, epoch=3)
    with pytest.raises(KafkaError) as caught:
        begin(state, epoch=2)
    assert caught.value.code == OLD


def test_no_batch_overtakes_the_lowest_sequence(state: ProducerState):
    begin(state, sequence=2, adds=False)
    assert sequence_error(state, 3) == GAP
    assert sequence_error(state, 2) is None


def test_an_unknown_producer_begins_at_zero(state: ProducerState):
    begin(state, sequence=5)
    assert sequence_error(state, 5) == GAP
    state.verifications.clear()
    begin(state, sequence=5, adds=False)
    assert sequence_error(state, 5) is None, "the entry of an old client may have expired"


def test_a_verification_without_a_result_expires(state: ProducerState):
    begin(state, now_ms=0)
    state.remove_expired_verifications(999)
    assert state.verifications
    state.remove_expired_verifications(1000)
    assert not state.verifications
