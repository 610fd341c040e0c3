"""Creation of the log of a new partition, in a new directory."""

from collections.abc import Callable

from odradek.log.config import LogConfig
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.partition_log import PartitionLog
from odradek.log.producers import replay as producer_replay
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment import Segment
from odradek.log.state import LoadedState
from odradek.log.storage.filesystem import FileSystem, storage_error


def create_partition_log(
    fs: FileSystem,
    directory: str,
    topic: str,
    partition: int,
    config: LogConfig,
    *,
    now_ms: int,
    monotonic_ms: int,
    log_start_offset: int,
    producer_expiration_ms: int,
    choose_jitter_ms: Callable[[int], int],
) -> PartitionLog:
    """Create a log that starts and ends at `log_start_offset`. flush.ms counts from `monotonic_ms`.

    The caller has just made `directory`. It is empty, so nothing is listed or read. The result equals that of
    `open_partition_log` with `is_clean`. Raises LogDirFailure, ShortageError.
    """
    try:
        segments = [Segment(fs, directory, log_start_offset, config, now_ms=now_ms, fresh=True)]
        producers = ProducerState(fs, directory, expiration_ms=producer_expiration_ms, snapshots=[])
        producer_replay.rebuild(producers, segments, log_start_offset, log_start_offset, now_ms, is_clean=True)
    except OSError as error:
        parent = directory.rpartition("/")[0]
        raise storage_error(parent, f"creating {directory} failed: {error}", error) from error
    start = end = recovery_point = log_start_offset
    state = LoadedState(segments, start, end, recovery_point, LeaderEpochs(), producers, [])
    return PartitionLog(
        fs, directory, topic, partition, config, state, monotonic_ms=monotonic_ms, choose_jitter_ms=choose_jitter_ms
    )
