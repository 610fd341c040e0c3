"""AddPartitionsToTxn to transaction coordinators on other brokers (KIP-890).

All transactions that are pending for a coordinator are sent in one request, and one request per coordinator is in
flight. Source of the behaviour: Apache Kafka's AddPartitionsToTxnManager.
"""

import logging

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode, read_error_code
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseAddPartitionsToTxnResult,
)
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.batch_loop import BatchLoop
from odradek.server.brokers.channel_pool import ChannelPool
from odradek.server.coordinators.runtime import report_failure
from odradek.server.work.clock import Clock
from odradek.server.work.waits import Wait

logger = logging.getLogger(__name__)

CoordinatorReply = AddPartitionsToTxnResponseAddPartitionsToTxnResult | ErrorCode
"""The coordinator's response, or an error for all partitions."""

Transaction = AddPartitionsToTxnRequestAddPartitionsToTxnTransaction
PendingTransactions = dict[str, tuple[Transaction, Deferred[CoordinatorReply]]]
"""By transactional id."""


class RemoteCoordinators:
    """Adds partitions to transactions, or verifies them, at coordinators on other brokers."""

    def __init__(self, channels: ChannelPool, clock: Clock) -> None:
        self._channels = channels
        self._clock = clock
        self._queues: dict[int, _CoordinatorQueue] = {}

    def add_or_verify(self, broker_id: int, transaction: Transaction) -> Deferred[CoordinatorReply]:
        """Send a transaction to its coordinator. Return a Deferred of the result."""
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = _CoordinatorQueue(broker_id, self._channels, self._clock)
        return queue.add(transaction)


class _CoordinatorQueue:
    """The transactions that are pending for one coordinator."""

    def __init__(self, broker_id: int, channels: ChannelPool, clock: Clock) -> None:
        self._broker_id = broker_id
        self._channels = channels
        self._pending: PendingTransactions = {}
        self._loop = BatchLoop(clock, self._send_batch, report_failure)

    def add(self, transaction: Transaction) -> Deferred[CoordinatorReply]:
        """Add a transaction. Of two with the same id, one fails, because a response has results by id.

        The older one fails: with a lower epoch it is fenced, and with the same epoch its client probably repeats it.
        Epochs of different producer ids are not comparable: a producer whose epochs are exhausted has the next id.
        """
        outcome: Wait[CoordinatorReply] = Wait(lambda: f"transaction coordinator on broker {self._broker_id}")
        name = transaction.transactional_id
        older = self._pending.get(name)
        is_comparable = older is not None and older[0].producer_id == transaction.producer_id
        if older is not None and is_comparable and older[0].producer_epoch > transaction.producer_epoch:
            outcome.callback(ErrorCode.INVALID_PRODUCER_EPOCH)
            return outcome
        self._pending[name] = transaction, outcome
        if older is not None:
            is_fenced = is_comparable and older[0].producer_epoch < transaction.producer_epoch
            older[1].callback(ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.NETWORK_EXCEPTION)
        self._loop.wake()
        return outcome

    async def _send_batch(self) -> bool:
        batch, self._pending = self._pending, {}
        if not batch:
            return False
        error = ErrorCode.NETWORK_EXCEPTION
        results: dict[str, CoordinatorReply] = {}
        channel = self._channels.find(self._broker_id)
        if channel is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            request = AddPartitionsToTxnRequest(transactions=[transaction for transaction, _ in batch.values()])
            try:
                response = await channel.send(request, AddPartitionsToTxnResponse)
                error = _request_error(response)
                results = {result.transactional_id: result for result in response.results_by_transaction}
            except BrokerUnavailableError as unavailable:
                logger.warning(
                    "transactions not verified; their producers retry transactions=%d broker=%d error=%s",
                    len(batch),
                    self._broker_id,
                    unavailable,
                )
            except Exception:
                # Without a result the producers' requests would never have a response.
                logger.exception("transactions not verified; please report this error broker=%d", self._broker_id)
        for name, (_, outcome) in batch.items():
            outcome.callback(error if error else results.get(name, ErrorCode.UNKNOWN_SERVER_ERROR))
        return True


def _request_error(response: AddPartitionsToTxnResponse) -> ErrorCode:
    """Return the error for all transactions. Clients do not handle CLUSTER_AUTHORIZATION_FAILED."""
    error = read_error_code(response.error_code)
    return ErrorCode.INVALID_TXN_STATE if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else error
