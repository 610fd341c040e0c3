import json

import pytest

from odradek.spark_it.state import checkpoint as module
from odradek.spark_it.state.checkpoint import CheckpointError, read, read_batch, rewind


def checkpoint(folder, planned, done, source='{"orders":{"0":%d,"1":7}}'):
    """Write a checkpoint as Spark 4.0 does, and return its folder."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"7cbbd64b-04ab-4ddf-8c30-6e0d8a1e9d1c"}')
    for batch in range(planned + 1):
        about = {"batchWatermarkMs": 5, "batchTimestampMs": 1000 + batch, "conf": {"spark.sql.shuffle.partitions": "4"}}
        lines = ["v1", json.dumps(about), source % (batch * 10) if "%" in source else source, "-"]
        (folder / "offsets" / str(batch)).write_text("\n".join(lines))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in range(done + 1):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (folder / "commits" / f".{batch}.crc").write_bytes(b"crc")
    (folder / "offsets" / f".{planned + 1}.1b2c.tmp").write_text("v1")
    return folder


def test_no_checkpoint(tmp_path):
    assert read(tmp_path) is None
    assert read(tmp_path / "none") is None


def test_a_query_without_batches(tmp_path):
    found = read(checkpoint(tmp_path, -1, -1))
    assert (found.planned, found.done, found.is_in_batch) == (None, None, False)


def test_between_batches(tmp_path):
    found = read(checkpoint(tmp_path, 11, 11))
    assert found.query_id == "7cbbd64b-04ab-4ddf-8c30-6e0d8a1e9d1c"
    assert (found.planned.id, found.done.id, found.is_in_batch) == (11, 11, False)
    assert found.done.parse_topic_offsets() == {("orders", 0): 110, ("orders", 1): 7}
    assert found.done.started_ms == 1011


def test_a_partition_that_two_sources_read(tmp_path):
    """The group's offset and a reset must not skip records that the slower source has yet to read."""
    found = read(checkpoint(tmp_path, 3, 3, '{"orders":{"0":10,"1":7}}\n{"orders":{"0":50}}\n{"logOffset":1}'))
    assert found.done.parse_by_source() == [{("orders", 0): 10, ("orders", 1): 7}, {("orders", 0): 50}]
    assert found.done.parse_topic_offsets() == {("orders", 0): 10, ("orders", 1): 7}


def test_in_a_batch(tmp_path):
    found = read(checkpoint(tmp_path, 10, 9))
    assert (found.planned.id, found.done.id, found.is_in_batch) == (10, 9, True)
    found = read(checkpoint(tmp_path / "first", 0, -1))
    assert (found.planned.id, found.done, found.is_in_batch) == (0, None, True)


def test_a_query_that_continues_during_the_read(tmp_path, monkeypatch):
    folder = checkpoint(tmp_path, 3, 3)
    look = module.find_newest

    def newest(log):
        found = look(log)
        planned = look(folder / "offsets")
        assert planned is not None
        batch = str(planned + 1)
        (folder / "offsets" / batch).write_text((folder / "offsets" / "3").read_text())
        (folder / "commits" / batch).write_text((folder / "commits" / "3").read_text())
        return found

    monkeypatch.setattr(module, "find_newest", newest)
    assert read(folder).done.id == 3


def test_offsets_of_a_source_without_topics(tmp_path):
    found = read(checkpoint(tmp_path, 0, 0, '{"logOffset":3}'))
    assert found.done.offsets == ('{"logOffset":3}', None)
    assert found.done.parse_topic_offsets() == {}


def test_rewind_removes_the_newest_commit(tmp_path):
    folder = checkpoint(tmp_path, 3, 3)
    assert rewind(folder) == 3
    assert sorted(path.name for path in (folder / "commits").iterdir()) == [
        ".0.crc", ".1.crc", ".2.crc", "0", "1", "2",
    ]  # fmt: skip
    assert read(folder).is_in_batch
    with pytest.raises(CheckpointError, match=r"batch 3 .* is not completed"):
        rewind(folder)


def test_rewind_without_a_completed_batch(tmp_path):
    for folder in (tmp_path, checkpoint(tmp_path / "one", -1, -1)):
        with pytest.raises(CheckpointError, match="has no completed batch"):
            rewind(folder)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("metadata", "{", "not in Spark's format"),
        ("metadata", "{}", "has no id"),
        ("offsets/1", "", "has version ''; supported: v1"),
        ("offsets/1", "v1", "truncated"),
        ("offsets/1", "v7\n{}", "has version 'v7'; supported: v1"),
        ("offsets/1", 'v1\n{"batchTimestampMs": "x"}', "not in Spark's format"),
        ("offsets/1", "v1\n[]", "not in Spark's format"),
        ("commits/1", "v9\n{}", "supported: v1 and v2"),
        ("commits/5", "v1\n{}", "batch 5 as completed, but has no plan for it"),
    ],
)
def test_damaged_checkpoints(tmp_path, file, text, message):
    folder = checkpoint(tmp_path, 1, 1)
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_a_missing_batch(tmp_path):
    with pytest.raises(CheckpointError, match="offsets/4 is missing"):
        read_batch(checkpoint(tmp_path, 1, 1), 4)
