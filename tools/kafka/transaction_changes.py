"""Termination of a transaction that its producer does not end."""

import time
from collections.abc import Callable
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.tools.kafka.cluster import RETRY_S, Cluster, RequestError, check
from odradek.tools.kafka.transactions import TRANSACTION_KEY, DescribedTransaction, describe_transactions

_PAUSE_S: Final = 0.1
_COMMITTED: Final = ("PrepareCommit", "CompleteCommit")


def terminate_transaction(
    cluster: Cluster, transaction: DescribedTransaction, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Abort a transaction and fence its producer, as the next instance of the producer does.

    One InitProducerId fences the producer; the coordinator returns CONCURRENT_TRANSACTIONS until the transaction is
    aborted in all partitions. The request is not repeated, because it would fence an instance that has begun meanwhile.

    Raises RequestError, also if the transaction has ended or another one has begun, or if it is committed.
    """
    name = transaction.transactional_id
    _check_same(cluster, transaction)
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=transaction.timeout_ms, enable2_pc=False, keep_prepared_txn=False
    )
    code = cluster.ask_coordinator(name, TRANSACTION_KEY, request, InitProducerIdResponse).error_code
    waited_s = 0.0
    while code == ErrorCode.CONCURRENT_TRANSACTIONS and waited_s < RETRY_S:
        current = describe_transactions(cluster, [name]).get(name)
        if current is not None and current.state in _COMMITTED:
            raise RequestError("INVALID_TXN_STATE", f"the transaction of {name} was committed meanwhile")
        if current is None or current.start_time_ms != transaction.start_time_ms:
            return
        sleep(_PAUSE_S)
        waited_s += _PAUSE_S
    check(code, None, f"transaction {name}")


def _check_same(cluster: Cluster, transaction: DescribedTransaction) -> None:
    name = transaction.transactional_id
    current = describe_transactions(cluster, [name]).get(name)
    if current is None or current != transaction._replace(partitions=current.partitions):
        raise RequestError("INVALID_TXN_STATE", f"the transaction of {name} has ended or changed meanwhile")
