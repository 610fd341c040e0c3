"""What the modules of one transaction coordinator shard work on together."""

from collections.abc import Callable

from odradek.coordinator.result import Completion, CoordinatorResult, Response, Token
from odradek.coordinator.timers import DeadlineHeap, Key
from odradek.coordinator.transactions.records import transaction_record
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.transaction import Change, Transaction
from odradek.protocol.errors import ErrorCode, KafkaError

FLEXIBLE_RECORDS_SINCE = 1
"""From this transaction version on, records are written in version 1 (KIP-890)."""


class TransactionShardState:
    """Transactions and deadlines of one partition of `__transaction_state`."""

    __slots__ = ("coordinator_epoch", "settings", "take_producer_id", "timers", "transactions")

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
        self.timers = DeadlineHeap(monotonic_ms)

    def transaction(self, transactional_id: str) -> Transaction:
        """The transaction; raises INVALID_PRODUCER_ID_MAPPING if there is none."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    def write(
        self, transaction: Transaction, change: Change, result: CoordinatorResult, completion: Completion
    ) -> None:
        """Have a decided change written; `completion` must abandon it if that fails."""
        transaction.begin(change)
        version = 1 if self.settings.transaction_version >= FLEXIBLE_RECORDS_SINCE else 0
        value = transaction.log_value(change)
        result.records.append(transaction_record(transaction.transactional_id, value, version))
        result.completions.append(completion)


class ChangeAnswered(Completion):
    """Answers the request that a change came from, by `answer`, with NONE or with what went wrong."""

    __slots__ = ("answer", "change", "is_answered", "token", "transaction")

    def __init__(
        self, transaction: Transaction, change: Change, token: Token, answer: Callable[[ErrorCode], Response]
    ) -> None:
        self.transaction = transaction
        self.change = change
        self.token = token
        self.answer = answer
        self.is_answered = False

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        self._reply(result, ErrorCode.NONE)

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        self.transaction.abandon(self.change)
        self._reply(result, error)

    def timed_out(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        self._reply(result, error)

    def _reply(self, result: CoordinatorResult, error: ErrorCode) -> None:
        if not self.is_answered:
            self.is_answered = True
            result.reply(self.token, self.answer(error))


def completion_key(transactional_id: str) -> Key:
    """When to try again to finish a decided transaction."""
    return ("completion", transactional_id)
