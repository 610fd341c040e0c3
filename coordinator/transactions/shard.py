"""`TransactionShard`: the transaction coordinator of one partition of `__transaction_state`.

It is the only class of this package that handles requests. The server uses it like `GroupShard`, and in addition writes
markers:

    result = shard.end_txn(request, context, token, now_ms)
    while result.records:
        try: base_offset = append(result.records)
        except KafkaError as error: result = shard.on_write_failed(result, error.code, now_ms)
        else:
            shard.on_appended(result, base_offset, now_ms) immediately, and wait until the records are replicated
            result = shard.on_written(result, base_offset, now_ms)
    send every reply of result.replies to its token
    for every partition of every outcome in result.outcomes: write the marker, and handle the result of
        shard.marker_written(...) in the same way

A result must be appended before the shard's next request or `tick`. `on_write_failed` may be called only if the records
are not in the log and never will be. If that is uncertain, the shard must `resign` and be loaded again; otherwise one
transaction could be both committed and aborted. When the broker becomes leader of the partition, `replay` is called for
every record, then `finish_loading`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Set

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorResult, Response, Token, client_error
from odradek.coordinator.steps import Steps, pieces
from odradek.coordinator.timers import DEADLINES_PER_TICK
from odradek.coordinator.transactions import admin as transaction_admin
from odradek.coordinator.transactions import ending as transaction_ending
from odradek.coordinator.transactions import expiry as transaction_expiry
from odradek.coordinator.transactions import init as transaction_init
from odradek.coordinator.transactions import markers as transaction_markers
from odradek.coordinator.transactions import partitions as transaction_partitions
from odradek.coordinator.transactions.records import largest_producer_id, read_transaction_key, read_transaction_value
from odradek.coordinator.transactions.responses import (
    add_offsets_response,
    add_partitions_response,
    add_partitions_result,
    end_txn_response,
    init_producer_id_response,
    verified_result,
)
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard_state import TransactionShardState
from odradek.coordinator.transactions.transaction import NO_PRODUCER_ID, ONGOING, PREPARED, Change
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
)
from odradek.protocol.messages.describe_transactions import DescribeTransactionsResponseTransactionState
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.list_transactions import ListTransactionsResponseTransactionState
from odradek.protocol.types import DecodeError

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"


class TransactionShard:
    """Transactions of one partition, from loading to resignation. It uses no I/O and no threads.

    `coordinator_epoch`: the partition's leader epoch
    `take_producer_id`: returns a new producer id; raises COORDINATOR_LOAD_IN_PROGRESS while none is available
    `monotonic_ms`: the clock of deadlines and transaction timeouts; `now_ms` of the methods is the wall clock
    `begin_producer_ids_at`: called after loading with the largest producer id in the records + 1, because a restored
    metadata store may be older than these records and could allocate their ids again
    """

    __slots__ = ("_begin_producer_ids_at", "_coordinator_state", "_state")

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        coordinator_epoch: int,
        take_producer_id: Callable[[], int],
        monotonic_ms: Callable[[], int],
        begin_producer_ids_at: Callable[[int], None] = lambda least_id: None,
    ) -> None:
        self._state = TransactionShardState(settings, coordinator_epoch, take_producer_id, monotonic_ms)
        self._begin_producer_ids_at = begin_producer_ids_at
        self._coordinator_state = CoordinatorState.LOADING

    @classmethod
    def absent(cls, settings: TransactionSettings) -> "TransactionShard":
        """Return a shard that rejects all requests with NOT_COORDINATOR, for a partition with another leader."""
        shard = cls(settings, coordinator_epoch=-1, take_producer_id=_no_producer_id, monotonic_ms=int)
        shard._coordinator_state = CoordinatorState.CLOSED
        return shard

    @property
    def coordinator_state(self) -> CoordinatorState:
        return self._coordinator_state

    @property
    def coordinator_epoch(self) -> int:
        return self._state.coordinator_epoch

    # -- requests ------------------------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """InitProducerId 0-6 of a producer with a transactional id."""
        error = transaction_init.request_error(self._state.settings, request) or self._coordinator_state.value
        if error:
            return _only_reply(token, init_producer_id_response(error, context.api_version))
        return transaction_init.init_producer_id(self._state, request, context, token, now_ms)

    def lacks_producer(self, transactional_id: str) -> bool:
        """Return whether InitProducerId needs a new producer id, because the transactional id is new."""
        return self._coordinator_state is CoordinatorState.ACTIVE and transactional_id not in self._state.transactions

    def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """AddPartitionsToTxn 0-3, for partitions that exist and are authorized."""
        topics, version = request.v3_and_below_topics, context.api_version
        return self._add(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            transaction_partitions.partitions_of(topics),
            transaction_partitions.client_version_of(version),
            token,
            lambda error: add_partitions_response(topics, error, version),
            now_ms,
        )

    def add_or_verify_partitions(
        self,
        transaction: AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
        context: RequestContext,
        token: Token,
        now_ms: int,
    ) -> CoordinatorResult:
        """One transaction of AddPartitionsToTxn 4-5; the reply is its AddPartitionsToTxnResult.

        With `verify_only` no partition is added: the reply states which partitions the transaction contains.
        """
        transactional_id, topics, version = transaction.transactional_id, transaction.topics, context.api_version
        if transaction.verify_only:
            return self._verify(transaction, version, token)
        return self._add(
            transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction_partitions.partitions_of(topics),
            transaction_partitions.client_version_of(version),
            token,
            lambda error: add_partitions_result(transactional_id, topics, error, version),
            now_ms,
        )

    def add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        context: RequestContext,
        token: Token,
        now_ms: int,
        *,
        offsets_partition: int,
    ) -> CoordinatorResult:
        """AddOffsetsToTxn 0-4: add the partition of `__consumer_offsets` that contains the group's offsets."""
        return self._add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            {(OFFSETS_TOPIC, offsets_partition): None},
            0,
            token,
            lambda error: add_offsets_response(error, context.api_version),
            now_ms,
        )

    def end_txn(self, request: EndTxnRequest, context: RequestContext, token: Token, now_ms: int) -> CoordinatorResult:
        """EndTxn 0-5. The response and the outcome follow when the decision is replicated."""
        error = self._gate(request.transactional_id)
        if error:
            return _only_reply(token, end_txn_response(error, context.api_version))
        return transaction_ending.end_txn(self._state, request, context, token, now_ms)

    # -- administration ------------------------------------------------------------------------------------------

    def describe(self, transactional_ids: Collection[str]) -> list[DescribeTransactionsResponseTransactionState]:
        """DescribeTransactions 0 for transactions of this shard."""
        error = self._coordinator_state.value
        if error:
            return [transaction_admin.describe_error(item, error) for item in transactional_ids]
        return [transaction_admin.describe(self._state, item) for item in transactional_ids]

    def count(self) -> Steps[Counter[str]]:
        """Return the number of transactional ids in each state, for metrics."""
        return transaction_admin.count(self._state)

    def list_transactions(
        self,
        states: Collection[str],
        producer_ids: Collection[int],
        duration_ms: int,
        pattern: str | None,
        now_ms: int,
    ) -> Steps[list[ListTransactionsResponseTransactionState]]:
        """ListTransactions 0-2 for this shard, with the filters of `admin.list_transactions`.

        Raises COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION: errors of the whole request.
        """
        if self._coordinator_state is CoordinatorState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return transaction_admin.list_transactions(
            self._state, frozenset(states), frozenset(producer_ids), duration_ms, pattern, now_ms
        )

    # -- markers -------------------------------------------------------------------------------------------------

    def marker_written(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: tuple[str, int],
        error: ErrorCode,
        now_ms: int,
    ) -> CoordinatorResult:
        """Handle the result of an outcome's marker in one partition, (topic, index).

        `error` is NONE if the marker is written or if the partition was deleted; the sender determines the latter from
        the metadata. UNKNOWN_TOPIC_OR_PARTITION from a broker may mean that its metadata is not up to date. The marker
        is then sent again, as part of a later result's outcome.
        """
        result = CoordinatorResult()
        transaction = self._state.transactions.get(transactional_id)
        if (
            self._coordinator_state is CoordinatorState.ACTIVE
            and transaction is not None
            and transaction.producer_id == producer_id
            and transaction.producer_epoch == producer_epoch
        ):
            transaction_markers.marker_written(self._state, transaction, partition, error, result, now_ms)
        return result

    def hasten_markers(self, topics: Set[str] | None) -> Steps[None]:
        """Retry failed markers now, because the metadata of these topics has changed; None for all topics."""
        return transaction_markers.hasten(self._state, topics)

    # -- records -------------------------------------------------------------------------------------------------

    def on_appended(
        self, result: CoordinatorResult, base_offset: int, now_ms: int, *, is_replicated: bool = False
    ) -> None:
        """Replay the result's records, which are in the log from `base_offset` on.

        Until `on_written` is called, responses contain the state before these records, because records that are not
        replicated may be lost. With `is_replicated`, `on_written` is called immediately.
        """
        for offset, record in enumerate(result.records, base_offset):
            change = record.change if isinstance(record.change, Change) else None
            self._replay(record.key, record.value, offset, change)
        for completion in result.completions:
            completion.applied(result, now_ms)

    def on_written(self, result: CoordinatorResult, base_offset: int, now_ms: int) -> CoordinatorResult:
        """Complete a result whose records are replicated. Return the result with its replies and outcomes."""
        if self._coordinator_state is not CoordinatorState.ACTIVE:
            return self.on_write_failed(result, ErrorCode.NOT_COORDINATOR, now_ms)
        self._state.replicated_up_to(base_offset + len(result.records))
        following = _carry_over(result)
        for completion in result.completions:
            completion.written(following, now_ms)
        return following

    def on_write_failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> CoordinatorResult:
        """Complete a result whose records are not in the log, or whose shard has resigned. Return the next result."""
        following = _carry_over(result)
        for completion in result.completions:
            completion.failed(following, _client_error(error), now_ms)
        return following

    def on_write_timed_out(self, result: CoordinatorResult, now_ms: int) -> CoordinatorResult:
        """Send the responses of a result whose records were not replicated in time. Return the next result.

        The records stay in the log, and later requests wait for them. `on_written` or `on_write_failed` is called
        later, with this result without its replies.
        """
        following = CoordinatorResult()
        following.replies.extend(result.replies)
        for completion in result.completions:
            completion.timed_out(following, _client_error(ErrorCode.REQUEST_TIMED_OUT), now_ms)
        return following

    def replay(self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition during loading; `producer_id` is ignored.

        Records of unknown types and records that cannot be decoded are logged and skipped. A shard becomes active only
        after all of its records are replicated.
        """
        self._replay(key, value, offset, None)
        self._state.replicated_up_to(offset + 1)

    def _replay(self, key: bytes, value: bytes | None, offset: int, change: Change | None) -> None:
        try:
            transactional_id = read_transaction_key(key)
            if isinstance(transactional_id, int):
                logger.warning("skipping record of unknown type type=%d offset=%d", transactional_id, offset)
            else:
                read = None if value is None else read_transaction_value(value)
                self._state.replay(transactional_id, read, offset, change)
        except (DecodeError, ValueError) as error:
            logger.error("skipping record that cannot be decoded offset=%d error=%s", offset, error)

    # -- election, resignation, deadlines ------------------------------------------------------------------------

    def finish_loading(self, now_ms: int) -> Steps[CoordinatorResult]:
        """Become active, and resume the transactions that were decided (PrepareCommit, PrepareAbort) but not completed.

        Called when all records are replayed and replicated: a decision that is not replicated could be lost after its
        markers were written.
        """
        state = self._state
        result = CoordinatorResult()
        largest_id = -1
        for transactions in pieces(state.transactions.values()):
            for transaction in transactions:
                largest_id = max(largest_id, largest_producer_id(transaction))
                if transaction.state in PREPARED:
                    transaction_markers.resume(state, transaction, result, now_ms)
                elif transaction.state is ONGOING:
                    transaction_expiry.resume_timeout(state, transaction, now_ms)
            yield
        self._coordinator_state = CoordinatorState.ACTIVE
        self._begin_producer_ids_at(largest_id + 1)
        transaction_expiry.begin(state)
        logger.debug(
            "transaction shard loaded transactions=%d unfinished=%d coordinator_epoch=%d",
            len(state.transactions), len(result.outcomes), state.coordinator_epoch,
        )  # fmt: skip
        return result

    def resign(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Discard the state, because leadership of the partition ends or the shard has to be loaded again.

        The shard is closed immediately; the iteration frees the state in steps. The runtime calls `on_write_failed` for
        each pending write, which replies to its requests.
        """
        self._coordinator_state = CoordinatorState.CLOSED
        state = self._state
        self._state = TransactionShardState(
            state.settings, state.coordinator_epoch, state.take_producer_id, state.timers.monotonic_ms
        )
        return state.discard()

    def next_deadline_ms(self) -> int | None:
        """Return the next deadline, at which `tick` has to be called, on the monotonic clock; None if there is none."""
        return self._state.timers.next_deadline_ms()

    def tick(self, now_ms: int) -> CoordinatorResult:
        """Handle a few due deadlines, up to and including the first that returns records, replies or outcomes.

        Otherwise these would wait for the replication of another transaction's records.
        """
        result = CoordinatorResult()
        timers = self._state.timers
        due_ms = timers.monotonic_ms()
        for _ in range(DEADLINES_PER_TICK):
            action = timers.pop_due(due_ms)
            if action is None:
                break
            action(result, now_ms)
            if result.records or result.replies or result.outcomes:
                break
        return result

    def _gate(self, transactional_id: str) -> ErrorCode:
        """Return the error of a request that is rejected before its transaction is looked up; NONE if it is not."""
        return self._coordinator_state.value if transactional_id else ErrorCode.INVALID_REQUEST

    def _add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: dict[tuple[str, int], None],
        client_version: int,
        token: Token,
        make_response: Callable[[ErrorCode], Response],
        now_ms: int,
    ) -> CoordinatorResult:
        error = self._gate(transactional_id)
        if error:
            return _only_reply(token, make_response(error))
        return transaction_partitions.add_partitions(
            self._state,
            transactional_id,
            producer_id,
            producer_epoch,
            partitions,
            client_version,
            token,
            make_response,
            now_ms,
        )

    def _verify(
        self,
        transaction: AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
        api_version: int,
        token: Token,
    ) -> CoordinatorResult:
        transactional_id, topics = transaction.transactional_id, transaction.topics
        try:
            error = self._gate(transactional_id)
            if error:
                raise KafkaError(error)
            errors = transaction_partitions.verify_partitions(
                self._state,
                transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction_partitions.partitions_of(topics),
            )
        except KafkaError as failure:
            return _only_reply(token, add_partitions_result(transactional_id, topics, failure.code, api_version))
        return _only_reply(token, verified_result(transactional_id, errors))


def _no_producer_id() -> int:
    raise KafkaError(ErrorCode.NOT_COORDINATOR)


def _client_error(write_error: ErrorCode) -> ErrorCode:
    if write_error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return client_error(write_error)


def _carry_over(result: CoordinatorResult) -> CoordinatorResult:
    """Return a new result with the replies and outcomes of `result`."""
    following = CoordinatorResult()
    following.replies.extend(result.replies)
    following.outcomes.extend(result.outcomes)
    return following


def _only_reply(token: Token, response: Response) -> CoordinatorResult:
    result = CoordinatorResult()
    result.reply(token, response)
    return result
