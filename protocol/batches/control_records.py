"""Control batches: transaction markers, and the types of control records.

The key of a control record is version and type, two bytes each. The value depends on the type.

Sources: KIP-98 (transaction markers); Kafka's ControlRecordTypeSchema.json and EndTxnMarker.json.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.batches.record_batch import NO_PARTITION_LEADER_EPOCH, InvalidRecordError

if TYPE_CHECKING:
    from odradek.protocol.batches.record_reader import Record

_KEY = Struct(">hh")
_END_TXN_VALUE = Struct(">hi")
_KEY_VERSION = 0
_END_TXN_VERSION = 0


class ControlType(IntEnum):
    """Type of a control record. Unassigned types are read as UNKNOWN and have to be ignored."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_KNOWN_TYPES = {int(kind): kind for kind in ControlType}


class ControlRecord(NamedTuple):
    """A control record's type, and the coordinator epoch of ABORT and COMMIT (None for other types)."""

    control_type: ControlType
    coordinator_epoch: int | None


def build_control_batch(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """Return a transaction marker, ABORT or COMMIT. Raises ValueError for another type."""
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise ValueError(f"{control_type!r} is no transaction marker")
    key = _KEY.pack(_KEY_VERSION, control_type)
    value = _END_TXN_VALUE.pack(_END_TXN_VERSION, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def parse_control_record(record: Record) -> ControlRecord:
    """Parse the record of a control batch.

    Newer versions of key and value only add fields, so they are parsed as version 0. Raises InvalidRecordError for a
    key or value that is missing, too short or of a negative version.
    """
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise InvalidRecordError(f"control record key {key!r} is too short")
    version, type_id = _KEY.unpack_from(key)
    if version < _KEY_VERSION:
        raise InvalidRecordError(f"control record key of version {version}")
    control_type = _KNOWN_TYPES.get(type_id, ControlType.UNKNOWN)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(control_type, None)
    value = record.value
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise InvalidRecordError(f"transaction marker value {value!r} is too short")
    value_version, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    if value_version < _END_TXN_VERSION:
        raise InvalidRecordError(f"transaction marker value of version {value_version}")
    return ControlRecord(control_type, coordinator_epoch)
