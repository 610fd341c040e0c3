"""Checks of producer snapshots and transaction indexes against a replay of the batches."""

from collections.abc import Iterator, Sequence
from typing import Final

from odradek.log.producers.replay import parse_marker
from odradek.log.producers.snapshots import CorruptSnapshotError, decode_snapshot
from odradek.log.producers.state import ProducerState
from odradek.log.producers.table import RECORD
from odradek.log.segments.segment_files import SNAPSHOT_SUFFIX, file_name
from odradek.log.segments.transaction_index import AbortedTransaction, CorruptTransactionIndexError
from odradek.log.storage.filesystem import FileSystem
from odradek.protocol.batches.compression import CompressionError
from odradek.protocol.batches.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, InvalidRecordError
from odradek.tools.logs.findings import Report, Severity
from odradek.tools.logs.index_checks import REBUILD
from odradek.tools.logs.index_files import read_transactions

_MAX_SEQUENCE: Final = 0x7FFFFFFF
_EXPIRATION_MS: Final = 86_400_000
"""Default of producer.id.expiration.ms."""
_NEVER: Final = 1 << 62
_SNAPSHOT_REMEDY: Final = (
    "producers may get OUT_OF_ORDER_SEQUENCE_NUMBER, or duplicates may be stored: stop the broker, remove the file and "
    ".kafka_cleanshutdown, and start the broker, which replays the batches"
)
_INDEX_REMEDY: Final = f"read_committed consumers may get aborted records or miss committed ones: {REBUILD}"


class ProducerReplay:
    """Replay of a partition's batches, compared with the snapshots whose offsets it passes, and with .txnindex files.

    The replay begins with the first snapshot at or below the log's start, if there is one. Otherwise the producers
    whose last batch is below the start are unknown, and are not compared.

    `has_gaps`: batches were removed by compaction, after which the replay cannot find the same state.
    """

    def __init__(self, fs: FileSystem, directory: str, snapshots: Sequence[int], start: int, report: Report) -> None:
        self._fs = fs
        self._directory = directory
        self._report = report
        self._start = start
        self._waiting = [offset for offset in snapshots if offset > start]
        self.has_gaps = False
        self.aborted: list[AbortedTransaction] = []
        """The transactions that ended by an abort marker in the current segment."""
        self._knows_all = start == 0 or (start in snapshots and self._read(start) is not None)
        self._state = ProducerState(fs, directory, expiration_ms=_NEVER, snapshots=[start] if start else [])
        if start and self._knows_all:
            self._state = self._state.load_earlier(start - 1, start, now_ms=0)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def _read(self, offset: int) -> memoryview | None:
        try:
            return decode_snapshot(self._fs.read_bytes(self._path(offset)))
        except FileNotFoundError:
            return None
        except CorruptSnapshotError as error:
            problem = f"the snapshot cannot be read: {error}"
            remedy = "nothing; the broker ignores the file, and reads the producers from the batches"
            self._report.add(Severity.WARNING, "snapshot", self._path(offset), problem, remedy)
            return None

    def add(self, fields: tuple[int, ...], batch: memoryview, path: str, position: int) -> None:
        """Apply a batch with a producer id."""
        start, _, _, _, _, attributes, last_delta, _, timestamp, producer_id, epoch, first, _ = fields
        if not attributes & CONTROL_FLAG:
            last_sequence = (first + last_delta) & _MAX_SEQUENCE if first >= 0 else first
            is_transactional = attributes & TRANSACTIONAL_FLAG != 0
            self._state.add_data(
                producer_id, epoch, last_sequence, start, start + last_delta, timestamp, is_transactional
            )
            return
        try:
            marker = parse_marker(batch)
        except (InvalidRecordError, CompressionError) as error:
            remedy = "the transaction stays open for read_committed consumers; copy the partition from another replica"
            problem = f"the transaction marker cannot be read: {error}"
            self._report.add(Severity.ERROR, "marker", path, problem, remedy, position)
            return
        if marker is None:
            return
        state = self._state
        done = state.add_marker(producer_id, epoch, marker.coordinator_epoch, start, marker.timestamp, marker.is_abort)
        if done is None:
            return
        if done.is_aborted:
            stable = state.last_stable_offset_after(done)
            self.aborted.append(AbortedTransaction(producer_id, done.first_offset, done.last_offset, stable))
        state.complete(done)
        state.high_watermark_advanced(start + 1)

    # Snapshots

    def reach(self, offset: int) -> None:
        """Compare the snapshots up to `offset`, at which a batch begins or the log ends."""
        while self._waiting and self._waiting[0] <= offset:
            self._compare(self._waiting.pop(0))

    @property
    def next_snapshot(self) -> int:
        return self._waiting[0] if self._waiting else _NEVER

    def finish(self, end_offset: int) -> None:
        """Compare the snapshots up to the end of the log, and report those behind it."""
        self.reach(end_offset)
        for offset in self._waiting:
            problem = f"the snapshot is of offset {offset}, but the log ends at {end_offset}"
            remedy = "nothing; the next start removes it"
            self._report.add(Severity.WARNING, "snapshot", self._path(offset), problem, remedy)

    def _compare(self, offset: int) -> None:
        records = self._read(offset)
        if records is None or self.has_gaps:
            return
        stored = {fields[0]: fields for fields in RECORD.iter_unpack(records)}
        replayed = {fields[0]: fields for fields in RECORD.iter_unpack(bytes(self._state.producers.records))}
        path = self._path(offset)
        for problem in self._differences(stored, replayed, self._fs.modified_ms(path)):
            self._report.add(Severity.WARNING, "snapshot", path, problem, _SNAPSHOT_REMEDY)

    def _differences(
        self, stored: dict[int, tuple[int, ...]], replayed: dict[int, tuple[int, ...]], written_ms: int
    ) -> Iterator[str]:
        for producer_id, found in replayed.items():
            kept = stored.get(producer_id)
            if kept is None:
                if found[-1] >= 0 or written_ms - found[5] < _EXPIRATION_MS:
                    yield f"producer {producer_id} is missing, and has batches up to offset {found[3]}"
            elif not self._is_same(kept, found):
                yield f"producer {producer_id} has {_describe(kept)}, its batches {_describe(found)}"
        for producer_id, kept in stored.items():
            if producer_id not in replayed and kept[3] >= self._start:
                yield f"producer {producer_id} has a batch that ends at offset {kept[3]}, which the log does not have"

    def _is_same(self, kept: tuple[int, ...], found: tuple[int, ...]) -> bool:
        """Return whether a snapshot's entry is that of the replay, apart from what happened before the log's start."""
        if kept == found:
            return True
        if self._knows_all or kept[:6] != found[:6]:
            return False
        has_epoch = kept[6] == found[6] or found[6] < 0
        return has_epoch and (kept[7] == found[7] or 0 <= kept[7] < self._start)

    # Transaction indexes

    def end_segment(self, path: str, complete_from: int, end_offset: int) -> None:
        """Compare the transactions that were aborted in a segment with its .txnindex file.

        Transactions that began below `complete_from` may be unknown, because their batches were removed. Entries with
        markers from `end_offset` on are ignored: they were added meanwhile.
        """
        aborted, self.aborted = self.aborted, []
        try:
            found = list(read_transactions(self._fs, path))
        except FileNotFoundError:
            found = []
        except CorruptTransactionIndexError as error:
            self._error(path, f"the transaction index cannot be read: {error}", None)
            return
        if self.has_gaps:
            return
        expected = {entry.last_offset: entry for entry in aborted}
        last_offset = -1
        for position, entry in found:
            if entry.last_offset >= end_offset:
                break
            wanted = expected.pop(entry.last_offset, None)
            if entry.last_offset <= last_offset:
                self._error(path, f"the entry for the marker at {entry.last_offset} does not ascend", position)
            elif wanted is None and entry.first_offset >= complete_from:
                self._error(path, f"no transaction ends with an abort marker as in {_format(entry)}", position)
            elif wanted is not None and not self._is_same_transaction(entry, wanted):
                self._error(path, f"the entry is {_format(entry)}, the batches have {_format(wanted)}", position)
            last_offset = entry.last_offset
        for entry in expected.values():
            self._error(path, f"the entry of an aborted transaction is missing: {_format(entry)}", None)

    def _is_same_transaction(self, entry: AbortedTransaction, wanted: AbortedTransaction) -> bool:
        if self._knows_all:
            return entry == wanted
        # An open transaction that began before the log's start determines other first and last stable offsets.
        return entry.producer_id == wanted.producer_id and entry.first_offset <= wanted.first_offset

    def _error(self, path: str, problem: str, position: int | None) -> None:
        self._report.add(Severity.ERROR, "transaction-index", path, problem, _INDEX_REMEDY, position)


def _describe(fields: tuple[int, ...]) -> str:
    _, epoch, sequence, last_offset, delta, timestamp, coordinator_epoch, first = fields
    return (
        f"epoch {epoch}, last sequence {sequence}, last offset {last_offset} (delta {delta}), timestamp {timestamp}, "
        f"coordinator epoch {coordinator_epoch}, open transaction from {first}"
    )


def _format(entry: AbortedTransaction) -> str:
    return (
        f"producer {entry.producer_id}, offsets {entry.first_offset} to {entry.last_offset}, last stable offset "
        f"{entry.last_stable_offset}"
    )
