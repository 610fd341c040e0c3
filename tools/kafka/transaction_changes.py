"""Termination of a transaction that its producer does not end."""

import time
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.tools.kafka.cluster import RETRY_S, Cluster
from odradek.tools.kafka.transactions import TRANSACTION_KEY, DescribedTransaction

_PAUSE_S: Final = 0.1


def terminate_transaction(cluster: Cluster, transaction: DescribedTransaction) -> int:
    """Abort a transaction and fence its producer, as the next instance of the producer does; return the error code.

    The coordinator returns CONCURRENT_TRANSACTIONS until the transaction is aborted in all partitions.
    """
    request = InitProducerIdRequest(
        transactional_id=transaction.transactional_id,
        transaction_timeout_ms=transaction.timeout_ms,
        enable2_pc=False,
        keep_prepared_txn=False,
    )
    give_up_at = time.monotonic() + RETRY_S
    while True:
        code = cluster.ask_coordinator(
            transaction.transactional_id, TRANSACTION_KEY, request, InitProducerIdResponse
        ).error_code
        if code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() >= give_up_at:
            return code
        time.sleep(_PAUSE_S)
