"""Record batches: the names that other packages import.

They are defined in `record_batch` (header), `record_chain` (check on produce), `record_reader` (decoded records),
`batch_builder` (construction) and `control_records` (transaction markers).
"""

from __future__ import annotations

from odradek.protocol.batches.batch_builder import (
    build_batch,
    build_plain_batch,
    empty_batch,
    rebuild_batch,
    recompress,
    stamp_log_append_time,
    stamp_timestamps,
)
from odradek.protocol.batches.compression import Codec, CompressionError
from odradek.protocol.batches.control_records import (
    ControlRecord,
    ControlType,
    build_control_batch,
    parse_control_record,
)
from odradek.protocol.batches.record_batch import (
    HEADER,
    LOG_OVERHEAD,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    crc_is_valid,
    iter_batches,
    read_header,
)
from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES, check_record_chain
from odradek.protocol.batches.record_reader import Record, iter_records

__all__ = [
    "HEADER",
    "LOG_OVERHEAD",
    "MAX_DECOMPRESSED_BYTES",
    "NO_PARTITION_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "RECORD_BATCH_OVERHEAD",
    "BatchHeader",
    "Codec",
    "CompressionError",
    "ControlRecord",
    "ControlType",
    "InvalidRecordError",
    "Record",
    "build_batch",
    "build_control_batch",
    "build_plain_batch",
    "check_record_chain",
    "crc_is_valid",
    "empty_batch",
    "iter_batches",
    "iter_records",
    "parse_control_record",
    "read_header",
    "rebuild_batch",
    "recompress",
    "stamp_log_append_time",
    "stamp_timestamps",
]
