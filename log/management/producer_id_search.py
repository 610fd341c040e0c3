"""Search of logs for the producer ids in them, so that none of these is allocated again."""

import logging
from collections.abc import Iterable

from odradek.log.partition_log import PartitionLog
from odradek.log.segments.transaction_index import CorruptTransactionIndexError

logger = logging.getLogger(__name__)

NO_PRODUCER_ID = -1


def largest_id_in_states(logs: Iterable[PartitionLog]) -> int:
    """Return the largest id in the logs' producer state, including expired producers of snapshots; -1 for none."""
    return max((log.producer_state.largest_id for log in logs), default=NO_PRODUCER_ID)


def largest_id_in_batches(log: PartitionLog) -> int:
    """Return the largest id in the headers of the log's batches and in its transaction indexes; -1 for none.

    Reads all chunks of the log that contain headers, and decodes no record. Raises OSError.
    """
    largest = NO_PRODUCER_ID
    for segment in log.segments:
        for _, header in segment.headers():
            if header.producer_id > largest:
                largest = header.producer_id
        try:
            aborted = segment.transaction_index.entries()
        except CorruptTransactionIndexError as error:
            logger.warning("ignoring a transaction index in the search for producer ids: %s", error)
        else:
            largest = max(largest, max((entry.producer_id for entry in aborted), default=NO_PRODUCER_ID))
    return largest
