"""State of one transaction coordinator shard, shared by its modules."""

from collections import deque
from collections.abc import Callable, Iterator

from odradek.coordinator.result import Completion, CoordinatorResult, Response, Token
from odradek.coordinator.timers import DeadlineHeap, DeadlineKey
from odradek.coordinator.transactions.records import TransactionLogValue, transaction_record
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.transaction import Change, Transaction, TransactionState, UnreplicatedRecord
from odradek.protocol.errors import ErrorCode, KafkaError

FLEXIBLE_RECORDS_SINCE = 1
"""From this transaction version on, records are written in version 1 (KIP-890)."""


class TransactionShardState:
    """Transactions and deadlines of one partition of `__transaction_state`."""

    __slots__ = (
        "_unreplicated", "coordinator_epoch", "postponed", "settings", "take_producer_id", "timers", "transactions",
    )  # fmt: skip

    def __init__(
        self,
        settings: TransactionSettings,
        coordinator_epoch: int,
        take_producer_id: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.coordinator_epoch = coordinator_epoch
        self.take_producer_id = take_producer_id
        self.transactions: dict[str, Transaction] = {}
        self.postponed: dict[str, dict[str, None]] = {}
        """Topic -> transactional ids for which a write to the topic failed after the last change of its metadata."""
        self.timers = DeadlineHeap(monotonic_ms)
        self._unreplicated: deque[tuple[int, Transaction]] = deque()  # record offset, in ascending order

    def transaction(self, transactional_id: str) -> Transaction:
        """Return the transaction. Raises INVALID_PRODUCER_ID_MAPPING if there is none."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    def write(
        self, transaction: Transaction, change: Change, result: CoordinatorResult, completion: Completion
    ) -> None:
        """Add the record of a change, which takes effect when it is replicated. Raises like `Transaction.check`."""
        transaction.check(change)
        version = 1 if self.settings.transaction_version >= FLEXIBLE_RECORDS_SINCE else 0
        record = transaction_record(transaction.transactional_id, transaction.log_value(change), version)
        result.records.append(record._replace(change=change))
        result.completions.append(completion)

    def replay(
        self, transactional_id: str, value: TransactionLogValue | None, offset: int, change: Change | None
    ) -> None:
        """Store a record that is in the log at `offset`, until `replicated_up_to` applies it.

        Raises ValueError for an unknown state.
        """
        transaction = self.transactions.get(transactional_id)
        if value is not None:
            TransactionState(value.transaction_status)
            if transaction is None:
                transaction = Transaction.of_first_record(transactional_id, value)
                self.transactions[transactional_id] = transaction
        if transaction is not None:
            transaction.unreplicated = UnreplicatedRecord(value, change)
            self._unreplicated.append((offset, transaction))

    def replicated_up_to(self, end_offset: int) -> None:
        """Apply every record below `end_offset`."""
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][0] < end_offset:
            _, transaction = unreplicated.popleft()
            record, transaction.unreplicated = transaction.unreplicated, None
            if record is None:
                raise RuntimeError(f"transaction {transaction.transactional_id} has no unreplicated record")
            if record.value is None:
                del self.transactions[transaction.transactional_id]
            else:
                transaction.apply(record.value, record.change)

    def discard(self) -> Iterator[CoordinatorResult]:
        """Free the state, which may be large, in steps. The results are empty."""
        while self.transactions:
            self.transactions.popitem()
            yield CoordinatorResult()
        for _ in self.timers.discard():
            yield CoordinatorResult()


class ReplyOnce(Completion):
    """Replies to one request with the response that `make_response` returns for NONE or for the error of the write."""

    __slots__ = ("has_replied", "make_response", "token")

    def __init__(self, token: Token, make_response: Callable[[ErrorCode], Response]) -> None:
        self.token = token
        self.make_response = make_response
        self.has_replied = False

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        self._reply(result, ErrorCode.NONE)

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        self._reply(result, error)

    def timed_out(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        self._reply(result, error)

    def _reply(self, result: CoordinatorResult, error: ErrorCode) -> None:
        if not self.has_replied:
            self.has_replied = True
            result.reply(self.token, self.make_response(error))


def completion_key(transactional_id: str) -> DeadlineKey:
    """Return the key of the deadline of the next attempt to complete a decided transaction."""
    return ("completion", transactional_id)
