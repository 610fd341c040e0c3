"""Loading of a coordinator's shard: replay of its partition in steps, and the reasons for which a load fails.

A load that failed for a transient reason (no memory, an I/O error that left the log directory online) is tried again
after a pause. One that met bytes that cannot be decoded would fail again: the shard stays unavailable until the log is
repaired. In either case it answers NOT_COORDINATOR, as in Apache Kafka, and the broker's other shards are not affected.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import (
    ControlType,
    InvalidRecordError,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
)

if TYPE_CHECKING:
    from odradek.replication.partition import Partition

FIRST_RETRY_PAUSE_S: Final = 1.0
MAX_RETRY_PAUSE_S: Final = 60.0


class Replayable(Protocol):
    """A shard, as loading uses it."""

    def replay(self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = -1) -> None: ...


R = TypeVar("R", bound=Replayable)


class ShardLoad(Generic[R]):
    """One attempt to load a shard. Each `next(steps)` reads and replays one chunk of the log.

    `offset` is the first offset that is not replayed yet: where a load that failed has stopped.
    """

    __slots__ = ("_chunk_bytes", "_partition", "_replay_marker", "offset", "shard", "steps")

    def __init__(
        self,
        partition: "Partition",
        shard: R,
        chunk_bytes: int,
        replay_marker: Callable[[R, int, bool, int], None],
    ) -> None:
        self.shard = shard
        self.offset = -1
        self._partition = partition
        self._chunk_bytes = chunk_bytes
        self._replay_marker = replay_marker
        self.steps = self._replay_all()

    def _replay_all(self) -> Iterator[None]:
        log = self._partition.leading_log()
        self.offset = log.log_start_offset
        while self.offset < log.log_end_offset:
            chunk = self._partition.read_to_end(self.offset, self._chunk_bytes)
            if not chunk:
                break
            start_offset = self.offset
            for batch in iter_batches(chunk):
                self._replay_batch(batch, log.log_end_offset)
            if self.offset == start_offset:
                raise InvalidRecordError(f"no whole batch in {len(chunk)} bytes")
            yield

    def _replay_batch(self, batch: memoryview, log_end_offset: int) -> None:
        header = read_header(batch)
        if not self.offset < header.next_offset <= log_end_offset:
            raise InvalidRecordError(
                f"batch ends before offset {header.next_offset}, which is not in {self.offset} to {log_end_offset}"
            )
        if header.is_control:
            for is_commit in _markers(batch):
                self._replay_marker(self.shard, header.producer_id, is_commit, header.last_offset)
        else:
            producer_id = header.producer_id if header.is_transactional else -1
            for record in iter_records(batch):
                if record.key is not None:
                    self.shard.replay(record.key, record.value, record.offset, producer_id)
        self.offset = header.next_offset


def _markers(batch: memoryview) -> Iterator[bool]:
    """The markers in a control batch: whether each is a commit."""
    for record in iter_records(batch):
        kind = parse_control_record(record).control_type
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            yield kind is ControlType.COMMIT


def is_transient(error: Exception) -> bool:
    """Return whether a load that failed with `error` may succeed when it is tried again."""
    if isinstance(error, KafkaError):
        return error.code is not ErrorCode.CORRUPT_MESSAGE
    return isinstance(error, MemoryError | OSError)


def retry_pause_s(failures: int) -> float:
    """The pause after so many failures in a row: each twice as long as the one before, within bounds."""
    return min(FIRST_RETRY_PAUSE_S * (1 << min(failures - 1, 16)), MAX_RETRY_PAUSE_S)
