"""Loading of a coordinator's shard: replay of its partition, and classification of failures.

The log is read on a thread in chunks, and replayed in slices that all shards share, so that fifty shards can load at
the same time without blocking the reactor. Batches that may be large when decompressed are decompressed on a thread.

After a transient failure (no memory, an I/O error that left the log directory online) loading is retried after a pause.
Bytes that cannot be decoded would cause another failure: the shard stays unavailable until the log is repaired. In both
cases its requests get NOT_COORDINATOR, as in Apache Kafka; the broker's other shards are not affected.
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from odradek.log.background.tasks import RunInThread
from odradek.log.storage.filesystem import FileRegion
from odradek.protocol.batches.compression import Codec, DecompressedTooLargeError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import (
    BatchHeader,
    ControlType,
    InvalidRecordError,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
    recompress,
)
from odradek.server.work.slices import Slices
from odradek.server.work.waits import call_in_thread

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition

T = TypeVar("T")

FIRST_RETRY_PAUSE_S: Final = 1.0
MAX_RETRY_PAUSE_S: Final = 60.0
MAX_CHUNK_BYTES: Final = 262_144
"""Limit of the log data in memory per loading shard; only a larger batch exceeds it."""
_RECORDS_PER_STEP: Final = 32
"""Records that one step decodes and replays, in some 300 us. A batch counts as one record."""
_SMALL_COMPRESSED_BYTES: Final = 4_096
_SMALL_BYTES: Final = 65_536
"""A batch up to these sizes, compressed and decompressed, is decompressed here, which is faster than on a thread."""


class Replayable(Protocol):
    """The interface of a shard for loading."""

    def replay(self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = -1) -> None: ...


R = TypeVar("R", bound=Replayable)


class ShardLoad(Generic[R]):
    """One attempt to load a shard.

    `offset` is the first offset that is not replayed yet; after a failure, the offset of the failure.
    """

    __slots__ = (
        "_chunk_bytes", "_is_wanted", "_partition", "_replay_marker", "_run_in_thread", "_slices", "offset", "shard",
    )  # fmt: skip

    def __init__(
        self,
        partition: "Partition",
        shard: R,
        chunk_bytes: int,
        replay_marker: Callable[[R, int, bool, int], None],
        slices: Slices,
        run_in_thread: RunInThread,
        is_wanted: Callable[[], bool],
    ) -> None:
        self.shard = shard
        self.offset = -1
        self._partition = partition
        self._chunk_bytes = min(chunk_bytes, MAX_CHUNK_BYTES)
        self._replay_marker = replay_marker
        self._slices = slices
        self._run_in_thread = run_in_thread
        self._is_wanted = is_wanted

    async def replay_all(self) -> None:
        """Replay the whole log. Raises NOT_LEADER_OR_FOLLOWER if the leadership ends; exceptions of read and decode."""
        self.offset = self._partition.leading_log().log_start_offset
        # The log may be replaced by one in another log directory between two chunks.
        while self.offset < self._partition.leading_log().log_end_offset:
            region = await self._slices.run(self._find_chunk())
            if region is None:
                break
            try:
                chunk = await call_in_thread(self._run_in_thread, region.read)
            except OSError as error:
                raise self._partition.read_failed(error) from error
            start_offset = self.offset
            self._check_wanted()
            await self._replay_chunk(chunk, self._partition.leading_log().log_end_offset)
            self._check_wanted()
            if self.offset == start_offset:
                raise InvalidRecordError(f"no complete batch in {len(chunk)} bytes")

    def _find_chunk(self) -> Generator[None, None, FileRegion | None]:
        """Find the next chunk in a separate step, because fifty shards may use their indexes at the same time."""
        yield
        self._check_wanted()
        return self._partition.region_to_end(self.offset, self._chunk_bytes)

    async def _replay_chunk(self, chunk: bytes, log_end_offset: int) -> None:
        batches = iter_batches(chunk)
        while (large := await self._slices.run(self._replay(batches, log_end_offset))) is not None:
            plain = await call_in_thread(self._run_in_thread, partial(recompress, large, Codec.NONE))
            await self._slices.run(self._replay(iter((memoryview(plain),)), log_end_offset))

    def _replay(self, batches: Iterator[memoryview], log_end_offset: int) -> Generator[None, None, memoryview | None]:
        """Replay batches. Return the first that is to be decompressed on a thread; None at the end."""
        count = 0
        for batch in batches:
            header = read_header(batch)
            if not self.offset < header.next_offset <= log_end_offset:
                raise InvalidRecordError(
                    f"batch ends before offset {header.next_offset}, which is not in {self.offset} to {log_end_offset}"
                )
            plain = _decompress_if_small(batch, header)
            if plain is None:
                return batch
            for _ in self._replay_batch(plain, header):
                count += 1
                if count % _RECORDS_PER_STEP == 0:
                    yield
                    self._check_wanted()
            self.offset = header.next_offset
        return None

    def _replay_batch(self, batch: memoryview, header: BatchHeader) -> Iterator[None]:
        yield
        if header.is_control:
            for is_commit in _read_markers(batch):
                self._replay_marker(self.shard, header.producer_id, is_commit, header.last_offset)
                yield
            return
        producer_id = header.producer_id if header.is_transactional else -1
        for record in iter_records(batch):
            if record.key is not None:
                self.shard.replay(record.key, record.value, record.offset, producer_id)
            yield

    def _check_wanted(self) -> None:
        if not self._is_wanted():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker no longer coordinates {self._partition!r}"
            )


def _decompress_if_small(batch: memoryview, header: BatchHeader) -> memoryview | None:
    """Return the batch without compression; None if it is to be decompressed on a thread."""
    if not header.codec:
        return batch
    if len(batch) > _SMALL_COMPRESSED_BYTES:
        return None
    try:
        return memoryview(recompress(batch, Codec.NONE, max_bytes=_SMALL_BYTES))
    except DecompressedTooLargeError:
        return None


def _read_markers(batch: memoryview) -> Iterator[bool]:
    """Yield for each transaction marker in a control batch whether it is a COMMIT marker."""
    for record in iter_records(batch):
        kind = parse_control_record(record).control_type
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            yield kind is ControlType.COMMIT


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed after a load failed with `error`."""
    if isinstance(error, KafkaError):
        return error.code is not ErrorCode.CORRUPT_MESSAGE
    return isinstance(error, MemoryError | OSError)


def compute_retry_pause_s(failures: int) -> float:
    """Return the pause after so many consecutive failures: it doubles each time, up to MAX_RETRY_PAUSE_S."""
    return min(FIRST_RETRY_PAUSE_S * (1 << min(failures - 1, 16)), MAX_RETRY_PAUSE_S)
