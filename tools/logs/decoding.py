"""Decoding of records: control records, and the internal topics of Kafka."""

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from odradek.coordinator.groups.records import (
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
    OffsetCommitKey,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.coordinator.transactions.records import read_transaction_key, read_transaction_value
from odradek.log.storage.checkpoints import encode_uuid
from odradek.protocol.batches.record_reader import Record
from odradek.protocol.records import ControlType, InvalidRecordError, parse_control_record
from odradek.protocol.schema import Struct
from odradek.protocol.types import UUID, DecodeError
from odradek.replication.metadata.kraft_metadata import ConfigRecord, decode_record
from odradek.tools.kafka.groups.consumer_protocol import PROTOCOL_TYPE, read_assignment, read_subscription
from odradek.tools.logs.directories import METADATA_TOPIC

Row = dict[str, object]
"""A line of a dump: fields in their order."""

_GROUP_RECORD_TYPES: Final = {
    0: "OFFSET_COMMIT_LEGACY",
    1: "OFFSET_COMMIT",
    2: "GROUP_METADATA",
    3: "CONSUMER_GROUP_METADATA",
    4: "CONSUMER_GROUP_PARTITION_METADATA",
    5: "CONSUMER_GROUP_MEMBER_METADATA",
    6: "CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA",
    7: "CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER",
    8: "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
    9: "SHARE_GROUP_PARTITION_METADATA",
    10: "SHARE_GROUP_MEMBER_METADATA",
    11: "SHARE_GROUP_METADATA",
    12: "SHARE_GROUP_TARGET_ASSIGNMENT_METADATA",
    13: "SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER",
    14: "SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT",
    15: "SHARE_GROUP_STATE_PARTITION_METADATA",
    16: "CONSUMER_GROUP_REGULAR_EXPRESSION",
    17: "STREAMS_GROUP_METADATA",
    18: "STREAMS_GROUP_PARTITION_METADATA",
    19: "STREAMS_GROUP_MEMBER_METADATA",
    20: "STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA",
    21: "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
    22: "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
    23: "STREAMS_GROUP_TOPOLOGY",
}
"""Names of the record types in `__consumer_offsets`, as of Apache Kafka 4.3."""
_OTHER_METADATA_TYPES: Final = {
    0: "REGISTER_BROKER_RECORD",
    1: "UNREGISTER_BROKER_RECORD",
    7: "FENCE_BROKER_RECORD",
    8: "UNFENCE_BROKER_RECORD",
    12: "FEATURE_LEVEL_RECORD",
    17: "BROKER_REGISTRATION_CHANGE_RECORD",
    20: "NO_OP_RECORD",
    21: "ZK_MIGRATION_STATE_RECORD",
    27: "REGISTER_CONTROLLER_RECORD",
    28: "CLEAR_ELR_RECORD",
}
"""Names of the record types in `__cluster_metadata` that an adoption does not need."""
_TRANSACTION_STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
)  # fmt: skip
_SECRET: Final = re.compile(r"password|secret|jaas|keystore\.key$")
"""Names of configurations whose values are secrets."""
_HIDDEN: Final = "[hidden]"
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def encode_bytes(name: str, data: bytes | None) -> Row:
    """Return the field of a key or value: text if it is UTF-8, otherwise base64 with `_base64` after the name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _raw(record: Record) -> Row:
    """Return key and value of a record that is not decoded, as base64."""
    return {
        name: None if data is None else base64.b64encode(data).decode()
        for name, data in (("raw_key_base64", record.key), ("raw_value_base64", record.value))
    }


def decode_control(record: Record) -> Row:
    """Return the fields of a control record."""
    try:
        control = parse_control_record(record)
    except InvalidRecordError as error:
        return {"error": str(error)}
    row: Row = {"control_type": control.control_type.name}
    if control.coordinator_epoch is not None:
        row["coordinator_epoch"] = control.coordinator_epoch
    elif control.control_type is ControlType.UNKNOWN:
        row |= encode_bytes("value", record.value)
    return row


def decoder_of(topic: str) -> Callable[[Record], Row] | None:
    """Return the decoder of an internal topic's records; None for any other topic."""
    return _DECODERS.get(topic)


def _decode_group_record(record: Record) -> Row:
    key = read_key(record.key or b"")
    if isinstance(key, int):
        row: Row = {"record_type": _GROUP_RECORD_TYPES.get(key, f"UNKNOWN_{key}")}
        return row | _raw(record)
    record_type = int.from_bytes((record.key or b"")[:2], "big")
    row = {"record_type": _GROUP_RECORD_TYPES[record_type], "record_key": _to_row(key)}
    if record.value is None:
        return row | {"record_value": None}
    is_commit = isinstance(key, OffsetCommitKey)
    row["record_version"] = int.from_bytes(record.value[:2], "big")
    if is_commit:
        return row | {"record_value": _to_row(read_offset_commit_value(record.value))}
    return row | {"record_value": _group_row(read_group_metadata_value(record.value))}


def _group_row(group: GroupMetadataValue) -> Row:
    """Return the fields of a group; those of its members are decoded if they are consumers."""
    row = _to_row(group)
    if group.protocol_type == PROTOCOL_TYPE:
        row["members"] = [_member_row(member) for member in group.members]
    return row


def _member_row(member: GroupMetadataValueMemberMetadata) -> Row:
    row = _to_row(member)
    with suppress(DecodeError):
        subscription, assignment = read_subscription(member.subscription), read_assignment(member.assignment)
        row["subscription"] = None if subscription is None else _to_row(subscription)
        row["assignment"] = None if assignment is None else _to_row(assignment)
    return row


def _decode_transaction_record(record: Record) -> Row:
    key = read_transaction_key(record.key or b"")
    if isinstance(key, int):
        row: Row = {"record_type": f"UNKNOWN_{key}"}
        return row | _raw(record)
    row = {"record_type": "TRANSACTION_LOG", "record_key": {"transactional_id": key}}
    if record.value is None:
        return row | {"record_value": None}
    value = _to_row(read_transaction_value(record.value))
    status = value["transaction_status"]
    if isinstance(status, int) and 0 <= status < len(_TRANSACTION_STATES):
        value["transaction_status_name"] = _TRANSACTION_STATES[status]
    return row | {"record_version": int.from_bytes(record.value[:2], "big"), "record_value": value}


def _decode_metadata_record(record: Record) -> Row:
    message = decode_record(record.value or b"")
    if message is None:
        return {"record_type": _metadata_type(record.value or b"")} | _raw(record)
    name = _WORD.sub("_", type(message).__name__).upper()
    row = _to_row(message)
    if isinstance(message, ConfigRecord) and _SECRET.search(message.name):
        row["value"] = _HIDDEN
    return {"record_type": name, "record_value": row}


def _metadata_type(value: bytes) -> str:
    # All types are below 128, where an unsigned varint is one byte. The first byte is the frame version.
    record_type = value[1]
    return _OTHER_METADATA_TYPES.get(record_type, f"UNKNOWN_{record_type}")


def _decode_safely(decode: Callable[[Record], Row]) -> Callable[[Record], Row]:
    def decode_or_report(record: Record) -> Row:
        try:
            return decode(record)
        except DecodeError as error:
            row: Row = {"error": f"the record cannot be decoded: {error}"}
            return row | _raw(record)

    return decode_or_report


_DECODERS: Final = {
    "__consumer_offsets": _decode_safely(_decode_group_record),
    "__transaction_state": _decode_safely(_decode_transaction_record),
    METADATA_TOPIC: _decode_safely(_decode_metadata_record),
}


def _to_row(message: Struct) -> Row:
    """Return the fields of a message, without secrets."""
    row: Row = {}
    for each in message.fields:
        value = getattr(message, each.name)
        row[each.name] = _HIDDEN if each.is_secret else _to_json(value, is_uuid=_is_uuid(each.wire))
    return row


def _is_uuid(wire: object) -> bool:
    return wire is UUID or getattr(wire, "element", None) is UUID


def _to_json(value: object, *, is_uuid: bool) -> object:
    if isinstance(value, Struct):
        return _to_row(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return encode_uuid(data) if is_uuid else base64.b64encode(data).decode()
    if isinstance(value, list):
        return [_to_json(each, is_uuid=is_uuid) for each in value]
    return value
