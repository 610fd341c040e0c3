"""The lowest producer id that a broker allocates after a start: above all ids in its logs.

The metadata store contains the end of the last block. It is older than the logs if it is new (a directory of Apache
Kafka, a lost store) or was restored from a backup. An id that is allocated twice loses records: a batch of the second
producer looks like a duplicate of a batch of the first, is acknowledged, and is not written.

| source | when |
|---|---|
| the end of the reserved ids, in the log directories | at every start |
| producer state of all loaded logs, in memory | at every start |
| the broker epoch of the last clean stop, which is lower than that of a current store | at every start |
| stray partitions: topics that an old store does not contain yet | at every start |
| values in `__transaction_state` | while shards load; already at start if the store is old |
| headers of all batches | once, if the store has never reserved a block |

No search finds ids in an offline directory, nor those of a producer that has written nothing yet. If the store is old,
ids therefore begin at least at the time in ms, which no earlier sequence has reached: a sequence begins at 0 or at an
earlier time, and takes less than one id per millisecond.
"""

import logging
from collections.abc import Callable

from odradek.coordinator.transactions.records import largest_producer_id, read_transaction_key, read_transaction_value
from odradek.log.background.tasks import RunAll
from odradek.log.log_manager import LogManager
from odradek.log.management.producer_id_search import NO_PRODUCER_ID, largest_id_in_batches, largest_id_in_states
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment import Segment
from odradek.protocol.records import iter_records
from odradek.replication.metadata.producer_id_blocks import begin_blocks_at, next_block_start
from odradek.replication.metadata.store import MetadataStore
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC

logger = logging.getLogger(__name__)

async def settle_producer_ids(
    store: MetadataStore,
    logs: LogManager,
    broker_id: int,
    broker_epoch: int,
    now_ms: int,
    run_all: RunAll,
    *,
    imported_next_id: int = 0,
) -> int:
    """Make the store's next block begin above every id in use, and return the lowest id that it may contain.

    `broker_epoch` is that of the new registration. `imported_next_id` is the next id in another store from which the
    logs are adopted, such as Apache Kafka's metadata log. Blocks while it reads. Raises MetadataStoreError.
    """
    stored = await next_block_start(store)
    known = max(largest_id_in_states(logs.all_logs()) + 1, logs.found_producer_id_end())
    is_older = any(directory.previous_broker_epoch >= broker_epoch for directory in logs.directories.values())
    least_id = max(stored or 0, known, imported_next_id)
    if stored is None:
        if logs.all_logs() or len(logs.online_directories) < len(logs.directories):
            least_id = max(least_id, _find_largest_id_in_logs(logs, run_all) + 1, now_ms)
    elif known > stored or is_older or logs.has_found_strays:
        logger.warning(
            "the metadata store may be older than the logs; producer ids begin above those in use stored=%d found=%d",
            stored,
            known,
        )
        least_id = max(least_id, _find_largest_id_in_transactions(logs, run_all) + 1, now_ms)
    if stored is None or least_id > stored:
        await begin_blocks_at(store, broker_id, least_id)
    return least_id


def _find_largest_id_in_logs(logs: LogManager, run_all: RunAll) -> int:
    """Return the largest id in the headers of all batches and the values in `__transaction_state`."""
    all_logs = logs.all_logs()
    size_bytes = sum(log.size_bytes for log in all_logs)
    if size_bytes:
        logger.info("searching batches for producer ids logs=%d bytes=%d", len(all_logs), size_bytes)
    largest = max(
        _find_largest(all_logs, largest_id_in_batches, logs, run_all), _find_largest_id_in_transactions(logs, run_all)
    )
    logger.info(
        "searched batches for producer ids, since the metadata store has none logs=%d bytes=%d largest=%d",
        len(all_logs),
        size_bytes,
        largest,
    )
    return largest


def _find_largest_id_in_transactions(logs: LogManager, run_all: RunAll) -> int:
    transaction_logs = [log for log in logs.all_logs() if log.topic == TRANSACTION_STATE_TOPIC]
    return _find_largest(transaction_logs, _find_largest_id_in_values, logs, run_all)


def _find_largest(
    all_logs: list[PartitionLog], search: Callable[[PartitionLog], int], logs: LogManager, run_all: RunAll
) -> int:
    found = [NO_PRODUCER_ID]

    def searching(log: PartitionLog) -> Callable[[], None]:
        def act() -> None:
            try:
                found.append(search(log))
            except OSError as error:
                # The next read of the log discovers the failure. Ids begin at the time in ms nevertheless.
                logger.error(
                    "cannot search a log for producer ids; check the disk log=%s error=%s", log.directory, error
                )

        return act

    threads = logs.settings.num_recovery_threads_per_data_dir * len(logs.directories)
    run_all([searching(log) for log in all_logs], threads)
    return max(found)


def _find_largest_id_in_values(log: PartitionLog) -> int:
    """Return the largest id in the values of a partition of `__transaction_state`. Raises OSError."""
    return max((_find_largest_id_in_segment(segment) for segment in log.segments), default=NO_PRODUCER_ID)


def _find_largest_id_in_segment(segment: Segment) -> int:
    largest = NO_PRODUCER_ID
    for position, header in segment.headers():
        if header.is_control:
            continue
        try:
            for record in iter_records(segment.file.pread(position, header.size_bytes)):
                if record.value is not None and isinstance(read_transaction_key(record.key or b""), str):
                    largest = max(largest, largest_producer_id(read_transaction_value(record.value)))
        except ValueError as error:
            logger.error(
                "skipping a malformed batch in the search for producer ids file=%s position=%d error=%s",
                segment.file.path,
                position,
                error,
            )
    return largest
