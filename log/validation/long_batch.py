"""Check of a batch that takes longer than one step; other requests are served between the steps.

`RecordStream` bounds the time and memory of a step. A batch that must be recompressed or renumbered is read a second
time and written piece by piece, until it exceeds max.message.bytes. Compression runs on a thread.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from odradek.log.config import LogConfig
from odradek.log.validation.batch import (
    CheckedRecords,
    accepted_timestamp,
    compression_level,
    invalid_record,
    needs_each_record,
    target_codec,
    too_large,
)
from odradek.log.validation.record import RecordCheck
from odradek.protocol.batches.batch_builder import put_varint
from odradek.protocol.batches.compression import Codec, CompressionError, DecompressedTooLargeError
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    read_header,
)
from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES, IncompleteRecordError, LargestDelta
from odradek.protocol.batches.record_runs import SINGLE_RECORDS, Run, records_to_block_end
from odradek.protocol.batches.record_shape import StepLimitError, read_varint
from odradek.protocol.batches.record_stream import OPENED_PER_STEP, RecordStream
from odradek.protocol.batches.streaming import Step, StreamPiece, ThreadCall, iter_compressed, iter_decompressed
from odradek.protocol.errors import ErrorCode, KafkaError


def check_in_steps(batch: memoryview, config: LogConfig, now_ms: int) -> Generator[Step, None, CheckedRecords]:
    """Check the records of a batch whose header has been checked. Raises KafkaError like `check_batch`."""
    header = read_header(batch)
    with _raising_kafka_errors():
        size_bytes, max_timestamp, is_numbered = yield from _check_records(header, batch, config, now_ms)
    checked = CheckedRecords(config, header, batch, max_timestamp)
    if is_numbered and target_codec(header, config) == header.codec:
        return checked
    return (yield from rewrite_in_steps(checked, size_bytes, is_numbered))


def rewrite_in_steps(
    checked: CheckedRecords, size_bytes: int, is_numbered: bool
) -> Generator[Step, None, CheckedRecords]:
    """Rewrite a batch in the topic's codec, with offset deltas 0, 1, 2...

    Old clients write other offset deltas in compressed batches. If these were stored, consumers would skip records, and
    compaction would keep a value whose tombstone it removes. Uncompressed batches are renumbered as well; Apache Kafka
    stores those unchanged. `size_bytes` is the decompressed size. Raises KafkaError MESSAGE_TOO_LARGE for a batch above
    max.message.bytes, and for records that have become too large to be decompressed again.
    """
    config, header, batch, max_timestamp = checked
    target = target_codec(header, config)
    with _raising_kafka_errors():
        records = _pieces(batch)
        if not is_numbered:
            if not needs_each_record(header, config):
                check = RecordCheck(header, config, max_timestamp)
                yield from _check_each_record(RecordStream(_pieces(batch)), check, header.record_count)
            records = _renumbered(RecordStream(records), header.record_count)
        rewritten = yield from _rewrite(header, records, target, config, size_bytes)
    return checked._replace(header=read_header(rewritten), batch=rewritten)


@contextmanager
def _raising_kafka_errors() -> Iterator[None]:
    try:
        yield
    except InvalidRecordError as error:
        raise invalid_record(str(error)) from None
    except DecompressedTooLargeError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch is too large decompressed: {error}") from None
    except CompressionError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the batch cannot be decompressed: {error}") from None


def _pieces(batch: memoryview) -> Iterator[StreamPiece]:
    return iter_decompressed(read_header(batch).codec, batch[RECORD_BATCH_OVERHEAD:], MAX_DECOMPRESSED_BYTES)


def _check_records(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int
) -> Generator[Step, None, tuple[int, int, bool]]:
    """Return the decompressed size, the largest timestamp, and whether the offset deltas are 0, 1, 2..."""
    if not needs_each_record(header, config):
        for expected in (max(0, header.max_timestamp - header.base_timestamp), 0):
            stream = RecordStream(_pieces(batch))
            largest = LargestDelta(expected)
            first = yield from stream.read_record()
            largest.consider_value(first[0])
            yield from stream.follow(header.record_count - 2, largest)
            last = yield from stream.read_record()
            largest.consider_value(last[0])
            yield from stream.expect_end()
            is_numbered = (first[1], last[1]) == (0, header.last_offset_delta)
            if config.message_timestamp_type == "LogAppendTime":
                return stream.read_bytes, header.max_timestamp, is_numbered
            if largest.value is not None:
                break
        max_timestamp = accepted_timestamp(header, largest.value, config, now_ms)
        if max_timestamp is not None:
            return stream.read_bytes, max_timestamp, is_numbered
    stream = RecordStream(_pieces(batch))
    check = RecordCheck(header, config, now_ms)
    yield from _check_each_record(stream, check, header.record_count)
    return stream.read_bytes, check.max_timestamp, check.is_numbered


def _check_each_record(stream: RecordStream, check: RecordCheck, count: int) -> Generator[Step, None, None]:
    while check.index < count:
        try:
            step = min(OPENED_PER_STEP, count - check.index)
            stream.position = check.check_all(stream.window, stream.position, step, OPENED_PER_STEP)
        except (IncompleteRecordError, StepLimitError) as error:
            stream.position = error.position
            check.check(*(yield from stream.read_record()))
        yield None
    yield from stream.expect_end()
    check.raise_errors()


def _renumbered(stream: RecordStream, count: int) -> Iterator[StreamPiece]:
    """Yield the records of a checked batch with offset deltas 0, 1, 2... and without attributes."""
    index = run_at = 0
    while index < count:
        yield b""
        yield from _steps(stream.fill_deltas())
        if run_at <= index:
            try:
                run = Run(stream.window, stream.position, min(count - index, records_to_block_end(index)))
                records = run.renumbered(index) if run.count else b""
            except (IncompleteRecordError, StepLimitError):
                records = b""
            if records:
                index += run.count
                stream.position = run.end
                yield records
                continue
            run_at = index + SINGLE_RECORDS
        last = min(count, index + SINGLE_RECORDS)
        while index < last:
            yield from _renumbered_record(stream, index)
            index += 1


def _renumbered_record(stream: RecordStream, index: int) -> Iterator[StreamPiece]:
    yield from _steps(stream.fill_deltas())
    window = stream.window
    length, start = read_varint(window, stream.position)
    delta_end = read_varint(window, start + 1)[1]
    rest_at = read_varint(window, delta_end)[1]
    numbered = bytearray(1)
    numbered += window[start + 1 : delta_end]
    put_varint(numbered, index)
    rest_bytes = start + length - rest_at
    head = bytearray()
    put_varint(head, len(numbered) + rest_bytes)
    output = head + numbered
    stream.position = rest_at
    while rest_bytes:
        part = stream.window[stream.position : stream.position + rest_bytes]
        output += part
        stream.position += len(part)
        rest_bytes -= len(part)
        if rest_bytes:
            yield bytes(output)
            output.clear()
            yield from _steps(stream.fill())
    yield bytes(output)


def _steps(work: Generator[Step, None, object]) -> Iterator[StreamPiece]:
    """Yield the steps of `work` as empty pieces."""
    for step in work:
        yield b"" if step is None else step


def _rewrite(
    header: BatchHeader, records: Iterator[StreamPiece], target: Codec, config: LogConfig, size_bytes: int
) -> Generator[Step, None, memoryview]:
    """Build a batch of `records` in the codec `target`, with the other fields of `header`."""
    kept = header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME_FLAG)
    header = header._replace(attributes=kept | target)
    batch = bytearray(HEADER.pack(*header))
    checksum = crc32c(batch[ATTRIBUTES_POSITION:])
    if target:
        records = _bounded(records)
    for piece in iter_compressed(target, records, compression_level(target, config), size_bytes):
        if isinstance(piece, ThreadCall):
            yield piece
            continue
        batch += piece
        checksum = crc32c(piece, checksum)
        if len(batch) > config.max_message_bytes:
            raise too_large(len(batch), config)
        yield None
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD, crc=checksum))
    return memoryview(batch)


def _bounded(records: Iterator[StreamPiece]) -> Iterator[StreamPiece]:
    remaining_bytes = MAX_DECOMPRESSED_BYTES
    for piece in records:
        yield piece
        if not isinstance(piece, ThreadCall):
            remaining_bytes -= len(piece)
            if remaining_bytes < 0:
                raise DecompressedTooLargeError(f"more than {MAX_DECOMPRESSED_BYTES} bytes of records")
