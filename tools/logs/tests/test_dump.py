"""`log dump`: the rows of each kind of file, the selection of offsets, and their formats."""

import base64
import json
import struct
from collections.abc import Sequence

import pytest

from odradek.coordinator.groups.records import (
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
    OffsetCommitValue,
    group_metadata_record,
    group_metadata_tombstone,
    offset_commit_record,
    offset_commit_tombstone,
)
from odradek.coordinator.transactions.records import (
    TransactionLogValue,
    TransactionLogValuePartitionsSchema,
    transaction_record,
    transaction_tombstone,
)
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import NOW_MS, append, config, open_log
from odradek.protocol.records import Codec, build_batch
from odradek.tools.logs.decoding import Row
from odradek.tools.logs.dump import KINDS, UnknownFileError, dump_file, kind_of, list_files, needed_segments
from odradek.tools.logs.dump_batches import DumpOptions, RecordLimit
from odradek.tools.logs.tests.support import COUNT, TOPIC_ID, StoredDirectory
from odradek.tools.logs.text import format_json, format_row

ALL = frozenset(KINDS)


@pytest.fixture
def stored() -> StoredDirectory:
    return StoredDirectory()


def dump(
    stored: StoredDirectory,
    path: str,
    max_records: int | None = None,
    *,
    has_records: bool = True,
    from_offset: int = 0,
) -> list[Row]:
    options = DumpOptions(has_records=has_records, from_offset=from_offset)
    return list(dump_file(stored.fs, path, options, RecordLimit(max_records)))


def records(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["type"] == "record"]


def stored_records(topic: str, entries: Sequence[tuple[bytes | None, bytes | None]]) -> list[Row]:
    """Write records to a topic, and return the rows of their dump."""
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, config(internal_segment_bytes=100_000), directory=f"/data/{topic}-0")
    append(log, memoryview(build_batch([(NOW_MS, key, value, ()) for key, value in entries])))
    log.close(NOW_MS)
    path = f"/data/{topic}-0/{0:020d}.log"
    return records(list(dump_file(fs, path, DumpOptions(has_records=True), RecordLimit(None))))


def test_files_are_listed_in_order(stored: StoredDirectory):
    files = list(list_files(stored.fs, "/data", ALL, lambda each: True))
    assert [path.removeprefix("/data/") for path in files][:5] == [
        ".kafka_cleanshutdown",
        "log-start-offset-checkpoint",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    in_partition = [path.removeprefix("/data/topic-0/") for path in files[5:]]
    first = f"{0:020d}"
    assert in_partition[:3] == [f"{first}.log", f"{first}.index", f"{first}.timeindex"]
    assert in_partition[-2:] == ["leader-epoch-checkpoint", "partition.metadata"]
    assert list(list_files(stored.fs, "/data", frozenset({"txnindex"}), lambda each: True)) == [stored.txnindex()]
    assert list(list_files(stored.fs, "/data", frozenset({"log"}), lambda each: False)) == []


def test_all_files_can_be_dumped(stored: StoredDirectory):
    for path in list_files(stored.fs, "/data", ALL, lambda each: True):
        for row in dump(stored, path):
            assert row["type"] != "error"
            assert json.loads(format_json(row)) == row
            assert format_row(row)
    assert kind_of("readme.txt") is None
    with pytest.raises(UnknownFileError, match=r"readme\.txt"):
        dump(stored, "/data/readme.txt")


def test_batches_and_records(stored: StoredDirectory):
    rows = dump(stored, stored.path(0, ".log"))
    assert [row["type"] for row in rows[:4]] == ["batch", "record", "batch", "record"]
    assert format_row(rows[2]).startswith(
        "baseOffset: 1 lastOffset: 1 count: 1 baseSequence: 1 lastSequence: 1 producerId: 7 producerEpoch: 0 "
        "partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: none position: 70 "
        f"CreateTime: {NOW_MS + 1} size: 70 magic: 2 compresscodec: none crc: "
    )
    assert format_row(rows[2]).endswith("isvalid: true")
    assert format_row(rows[3]) == (
        f"| offset: 1 CreateTime: {NOW_MS + 1} keySize: 1 valueSize: 1 sequence: 1 headers: [] key: k payload: 1"
    )
    assert [row["type"] for row in dump(stored, stored.path(0, ".log"), has_records=False)] == ["batch"] * 7


def test_control_records(stored: StoredDirectory):
    rows = [row for n in range(len(stored.bases)) for row in dump(stored, stored.path(n, ".log"))]
    [marker] = [row for row in records(rows) if "control_type" in row]
    assert (marker["control_type"], marker["coordinator_epoch"]) == ("ABORT", 1)


def test_from_offset_and_max_records(stored: StoredDirectory):
    path = stored.path(1, ".log")
    base = stored.bases[1]
    rows = dump(stored, path, 2, from_offset=base + 2)
    assert [row["offset"] for row in records(rows)] == [base + 2, base + 3]
    rows = dump(stored, path, 3, has_records=False)
    assert [row["base_offset"] for row in rows] == [base, base + 1, base + 2]
    # A wrong index leads to no batch, and is not used.
    stored.change(stored.path(1, ".index"), 4, struct.pack(">i", 75))
    assert dump(stored, path, from_offset=base + 1)[0]["base_offset"] == base + 1
    stored.fs.remove(stored.path(1, ".index"))
    assert dump(stored, path, from_offset=base + 1)[0]["base_offset"] == base + 1
    files = list(list_files(stored.fs, "/data", frozenset({"log"}), lambda each: True))
    assert needed_segments(files, base) == files[1:]
    assert needed_segments(files, base - 1) == files
    assert needed_segments(files, 10_000) == files[-1:]


def test_a_batch_is_dumped_from_an_offset_within(stored: StoredDirectory):
    log = open_log(stored.fs, config(internal_segment_bytes=100_000), directory="/data/other-0")
    headers = (("a", b"1"), ("b", None), ("c", b"\xff"))
    entries = [(NOW_MS, None, b"%d" % number, headers) for number in range(10)]
    append(log, memoryview(build_batch(entries, codec=Codec.GZIP)))
    log.close(NOW_MS)
    rows = dump(stored, f"/data/other-0/{0:020d}.log", from_offset=8)
    assert rows[0]["compression"] == "gzip"
    assert [(row["offset"], row["key"], row["value"]) for row in rows[1:]] == [(8, None, "8"), (9, None, "9")]
    assert rows[1]["headers"] == [
        {"key": "a", "value": "1"},
        {"key": "b", "value": None},
        {"key": "c", "value_base64": "/w=="},
    ]
    assert " headers: [a=1,b=null,c=/w==] key: null payload: 8" in format_row(rows[1])


def test_indexes_snapshots_and_checkpoints(stored: StoredDirectory):
    base = stored.bases[1]
    [first, *_] = dump(stored, stored.path(1, ".index"))
    assert first == {"type": "index_entry", "offset": base + 1, "position": stored.positions[1][1]}
    [first, *_] = dump(stored, stored.path(1, ".timeindex"))
    assert first == {"type": "time_index_entry", "timestamp": NOW_MS + base + 1, "offset": base + 1}
    assert dump(stored, stored.txnindex()) == [
        {
            "type": "aborted_transaction", "version": 0, "producer_id": 9,
            "first_offset": 13, "last_offset": 14, "last_stable_offset": 15,
        }
    ]  # fmt: skip
    rows = dump(stored, f"/data/topic-0/{stored.end:020d}.snapshot")
    assert [row["producer_id"] for row in rows] == [7, 9]
    assert format_row(rows[0]) == (
        "producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: none "
        f"lastTimestamp: {NOW_MS + COUNT - 1} firstSequence: {COUNT - 1} lastSequence: {COUNT - 1} "
        f"lastOffset: {stored.end - 1} offsetDelta: 0 timestamp: {NOW_MS + COUNT - 1}"
    )
    assert dump(stored, "/data/topic-0/leader-epoch-checkpoint") == [
        {"type": "leader_epoch", "epoch": 0, "start_offset": 0},
        {"type": "leader_epoch", "epoch": 1, "start_offset": 27},
    ]
    assert dump(stored, "/data/recovery-point-offset-checkpoint") == [
        {"type": "offset", "topic": "topic", "partition": 0, "offset": stored.end}
    ]
    [metadata] = dump(stored, "/data/topic-0/partition.metadata")
    assert base64.urlsafe_b64decode(str(metadata["topic_id"]) + "==") == TOPIC_ID
    [meta] = dump(stored, "/data/meta.properties")
    assert (meta["cluster_id"], meta["node_id"]) == ("cluster", 1)
    assert dump(stored, "/data/.kafka_cleanshutdown") == [{"type": "clean_shutdown", "broker_epoch": -1}]


def test_damage_is_dumped(stored: StoredDirectory):
    path = stored.path(0, ".log")
    stored.flip(0, 1, 65)
    stored.write(path, stored.read(path) + b"torn")
    rows = dump(stored, path, has_records=False)
    assert [row["type"] for row in rows[:3]] == ["batch", "batch", "damage"]
    assert [row["is_valid"] for row in rows[:2]] == [True, False]
    assert format_row(rows[-1]).startswith("Found 4 invalid bytes at position ")
    stored.write(path, bytes(100))
    assert [format_row(row) for row in dump(stored, path)] == [
        "Found 100 zero bytes at position 0, up to the end of the file"
    ]
    for name in (stored.txnindex(), stored.path(1, ".snapshot"), "/data/meta.properties"):
        stored.write(name, b"damaged")
        [row] = dump(stored, name)
        assert format_row(row).startswith("Error: ")


def test_group_records():
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=NOW_MS, topic_id=TOPIC_ID)
    members = [
        GroupMetadataValueMemberMetadata(
            member_id="a", client_id="c", client_host="/127.0.0.1", rebalance_timeout=1, session_timeout=2,
            subscription=b"\0\0" b"\0\0\0\1" b"\0\1t" b"\xff\xff\xff\xff",
            assignment=b"\0\7" b"\0\0\0\1" b"\0\1t" b"\0\0\0\1" b"\0\0\0\5" b"\0\0\0\1x" b"newer",
        ),
        GroupMetadataValueMemberMetadata(
            member_id="b", client_id="c", client_host="/127.0.0.1", session_timeout=2, subscription=b"?", assignment=b""
        ),
    ]  # fmt: skip
    group = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="a", current_state_timestamp=4, members=members
    )
    made = [
        offset_commit_record("g", "t", 1, value),
        offset_commit_tombstone("g", "t", 1),
        group_metadata_record("g", group),
        group_metadata_tombstone("g"),
    ]
    rows = stored_records(
        "__consumer_offsets", [*((each.key, each.value) for each in made), (b"\0\3x", b"\0\0y"), (b"", b"")]
    )
    assert [row.get("record_type") for row in rows] == [
        "OFFSET_COMMIT", "OFFSET_COMMIT", "GROUP_METADATA", "GROUP_METADATA", "CONSUMER_GROUP_METADATA", None,
    ]  # fmt: skip
    assert rows[0]["record_key"] == {"group": "g", "topic": "t", "partition": 1}
    assert rows[0]["record_value"] == {
        "offset": 5, "leader_epoch": 2, "metadata": "m", "commit_timestamp": NOW_MS, "expire_timestamp": -1,
        "topic_id": "AAECAwQFBgcICQoLDA0ODw",
    }  # fmt: skip
    assert rows[1]["record_value"] is None
    stored_group = rows[2]["record_value"]
    assert isinstance(stored_group, dict)
    first, second = stored_group["members"]
    assert first["subscription"]["topics"] == ["t"]
    assert first["assignment"] == {"assigned_partitions": [{"topic": "t", "partitions": [5]}], "user_data": "eA=="}
    assert second["subscription"] == base64.b64encode(b"?").decode(), "bytes that cannot be decoded"
    assert rows[4]["raw_value_base64"] == base64.b64encode(b"\0\0y").decode()
    assert "cannot be decoded" in str(rows[5]["error"])


def test_transaction_records():
    value = TransactionLogValue(
        producer_id=4, producer_epoch=1, transaction_timeout_ms=60_000, transaction_status=1,
        transaction_partitions=[TransactionLogValuePartitionsSchema(topic="t", partition_ids=[0, 2])],
        transaction_last_update_timestamp_ms=NOW_MS, transaction_start_timestamp_ms=NOW_MS,
    )  # fmt: skip
    made = [transaction_record("x", value, 1), transaction_tombstone("x")]
    rows = stored_records("__transaction_state", [(each.key, each.value) for each in made] + [(b"\0\7", b"z")])
    assert rows[0]["record_key"] == {"transactional_id": "x"}
    stored_value = rows[0]["record_value"]
    assert isinstance(stored_value, dict)
    assert stored_value["transaction_partitions"] == [{"topic": "t", "partition_ids": [0, 2]}]
    assert stored_value["transaction_status_name"] == "Ongoing"
    assert rows[1]["record_value"] is None
    assert rows[2]["record_type"] == "UNKNOWN_7"


def test_metadata_records_hide_secrets():
    def config_record(name: str, value: str) -> bytes:
        texts = [bytes([len(each) + 1]) + each.encode() for each in ("1", name, value)]
        return b"\1\4\0\4" + b"".join(texts) + b"\0"

    entries = [
        (None, config_record("retention.ms", "5")),
        (None, config_record("listener.name.a.ssl.key.password", "geheim")),
        (None, b"\1\x14\0\0"),
    ]
    rows = stored_records("__cluster_metadata", entries)
    assert rows[0]["record_value"] == {
        "resource_type": 4, "resource_name": "1", "name": "retention.ms", "value": "5"
    }  # fmt: skip
    assert "geheim" not in format_json(rows[1])
    assert rows[2]["record_type"] == "NO_OP_RECORD"


def test_text_has_no_control_characters():
    row: Row = {"type": "record", "key": "a\x1b[31m\nb"}
    assert format_row(row) == r"| key: a\x1b[31m\nb"
