"""The producer id from which on a starting broker gives out ids: above all that its logs know.

The metadata store has the end of the last block. It is behind the logs when it is new (a directory that Apache Kafka
wrote, a store that was lost) or was restored from a backup, and an id given out twice costs records: the second
producer's batch passes for one of the first that is sent again, is acknowledged, and is not written.

| what is searched | when |
|---|---|
| the end of the reserved ids that the log directories have | at every start |
| producer state of all loaded logs, in memory | at every start |
| the broker epoch of the last clean stop, which a store that is not behind exceeds | at every start |
| stray partitions: topics that a store that is behind does not have yet | at every start |
| values in `__transaction_state` | while shards load; at the start already if the store is behind |
| headers of all batches | once, when the store has never reserved a block |

No search finds ids in a directory that is offline, nor those of a producer that has written nothing yet. If the store
is behind, ids therefore begin at the time in ms, too, which no earlier sequence has reached: a sequence begins at 0 or
at an earlier time, and takes less than one id a millisecond.
"""

import logging
from collections.abc import Callable, Sequence

from odradek.coordinator.transactions.records import largest_producer_id, read_transaction_key, read_transaction_value
from odradek.log.log_manager import LogManager
from odradek.log.management.producer_id_search import NO_PRODUCER_ID, largest_id_in_batches, largest_id_in_states
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment import Segment
from odradek.protocol.records import iter_records
from odradek.replication.metadata.producer_id_blocks import begin_blocks_at, next_block_start
from odradek.replication.metadata.store import MetadataStore
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC

logger = logging.getLogger(__name__)

RunAll = Callable[[Sequence[Callable[[], None]], int], None]


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
    """Let the store's next block begin above every id in use, and return the least id it may have.

    `broker_epoch` is that of the new registration. `imported_next_id` is the next id of another store that the logs
    are taken over from, such as Apache Kafka's metadata log. Blocks while it reads. Raises MetadataStoreError.
    """
    stored = await next_block_start(store)
    known = max(largest_id_in_states(logs.all_logs()) + 1, logs.found_producer_id_end())
    is_older = any(directory.previous_broker_epoch >= broker_epoch for directory in logs.directories.values())
    least_id = max(stored or 0, known, imported_next_id)
    if stored is None:
        if logs.all_logs() or len(logs.online_directories) < len(logs.directories):
            least_id = max(least_id, _largest_id_in_logs(logs, run_all) + 1, now_ms)
    elif known > stored or is_older or logs.has_found_strays:
        logger.warning(
            "the metadata store may be older than the logs; producer ids begin above those in use stored=%d found=%d",
            stored,
            known,
        )
        least_id = max(least_id, _largest_id_in_transactions(logs, run_all) + 1, now_ms)
    if stored is None or least_id > stored:
        await begin_blocks_at(store, broker_id, least_id)
    return least_id


def _largest_id_in_logs(logs: LogManager, run_all: RunAll) -> int:
    """In everything: one pass over the headers of all batches, and over the values in `__transaction_state`."""
    all_logs = logs.all_logs()
    size_bytes = sum(log.size_bytes for log in all_logs)
    if size_bytes:
        logger.info("searching batches for producer ids logs=%d bytes=%d", len(all_logs), size_bytes)
    largest = max(
        _largest_of(all_logs, largest_id_in_batches, logs, run_all), _largest_id_in_transactions(logs, run_all)
    )
    logger.info(
        "searched batches for producer ids, since the metadata store has none logs=%d bytes=%d largest=%d",
        len(all_logs),
        size_bytes,
        largest,
    )
    return largest


def _largest_id_in_transactions(logs: LogManager, run_all: RunAll) -> int:
    transaction_logs = [log for log in logs.all_logs() if log.topic == TRANSACTION_STATE_TOPIC]
    return _largest_of(transaction_logs, _largest_id_in_values, logs, run_all)


def _largest_of(
    all_logs: list[PartitionLog], search: Callable[[PartitionLog], int], logs: LogManager, run_all: RunAll
) -> int:
    found = [NO_PRODUCER_ID]

    def searching(log: PartitionLog) -> Callable[[], None]:
        def act() -> None:
            try:
                found.append(search(log))
            except OSError as error:
                # Whoever reads it next finds it broken; ids begin at the time all the same.
                logger.error("cannot search a log for producer ids log=%s error=%s", log.directory, error)

        return act

    threads = logs.settings.num_recovery_threads_per_data_dir * len(logs.directories)
    run_all([searching(log) for log in all_logs], threads)
    return max(found)


def _largest_id_in_values(log: PartitionLog) -> int:
    """The largest id in the values of a partition of `__transaction_state`, read batch by batch. Raises OSError."""
    return max((_largest_id_in_segment(segment) for segment in log.segments), default=NO_PRODUCER_ID)


def _largest_id_in_segment(segment: Segment) -> int:
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
                "passing over a batch in the search for producer ids file=%s position=%d error=%s",
                segment.file.path,
                position,
                error,
            )
    return largest
