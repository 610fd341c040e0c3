import json

from odradek.spark_it.state.checkpoint import read, read_batch
from odradek.spark_it.state.new_partitions import admit
from spark_it.tests.unit.support import StubCluster

OLD, NEW, OTHER = ("orders", 0), ("orders", 1), ("visits", 3)


class FakeCluster(StubCluster):
    """Partitions with their log start offsets `first` and the committed offsets."""

    def __init__(self, first, committed=()):
        self.first = first
        self.offsets = dict(committed)

    def fetch_earliest(self, partitions):
        return {at: self.first[at] for at in partitions}

    def fetch_committed(self, group, partitions):
        assert group == "orders"
        return {at: self.offsets[at] for at in partitions if at in self.offsets}

    def commit(self, group, offsets, metadata=""):
        assert group == "orders"
        self.offsets |= offsets


def planned(folder, *batches):
    """Write a checkpoint in which all batches but the last are completed; a batch has a text for each source."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    (folder / "metadata").write_text('{"id": "q"}')
    for number, texts in enumerate(batches):
        about = json.dumps({"batchTimestampMs": number})
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", about, *texts]))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < len(batches) - 1:
            (folder / "commits" / str(number)).write_text("v1\n{}")


def test_new_partitions_start_with_their_first_records(tmp_path):
    planned(
        tmp_path,
        ['{"orders":{"0":4}}', "-", '{"logOffset":0}', "{}"],
        ['{"orders":{"0":5,"1":9}}', "-", '{"logOffset":1}', '{"visits":{"3":20}}'],
    )
    found = admit(tmp_path, FakeCluster({NEW: 7, OTHER: 25}), None)
    # All planned records of the other partition are deleted, which the next batch reports.
    assert found == {NEW: 7, OTHER: 20}
    assert read_batch(tmp_path, 0).offsets == (
        '{"orders":{"0":4,"1":7}}', None, '{"logOffset":0}', '{"visits":{"3":20}}',
    )  # fmt: skip
    assert read_batch(tmp_path, 0).started_ms == 0 and read(tmp_path).is_in_batch
    assert [path.name for path in sorted((tmp_path / "offsets").iterdir())] == [".1.crc", "0", "1"]
    assert admit(tmp_path, FakeCluster({}), None) == {}


def test_markers_are_committed_before_the_checkpoint_changes(tmp_path):
    planned(tmp_path, ['{"orders":{"0":4}}'], ['{"orders":{"0":4,"1":9},"visits":{"3":9}}'])
    before = read_batch(tmp_path, 0).offsets

    class Watching(FakeCluster):
        def commit(self, group, offsets, metadata=""):
            assert read_batch(tmp_path, 0).offsets == before
            super().commit(group, offsets, metadata)

    group = Watching({NEW: 7, OTHER: 2}, {OLD: 4, OTHER: 3})
    assert admit(tmp_path, group, "orders") == {NEW: 7, OTHER: 2}
    # A higher marker is of another state of the pipeline: it is kept, and the sink refuses it.
    assert group.offsets == {OLD: 4, NEW: 7, OTHER: 3}
    assert read_batch(tmp_path, 0).offsets != before


def test_new_partitions_of_a_first_batch(tmp_path):
    """Such partitions were created between the lookup of the initial offsets and the plan of the first batch."""
    planned(tmp_path, ['{"logOffset":0}', '{"orders":{"0":4,"1":9}}'])
    for source, text in enumerate(['{"logOffset":-1}', '{"orders":{"0":2}}']):
        log = tmp_path / "sources" / str(source)
        log.mkdir(parents=True)
        (log / "0").write_bytes(b"\0v1\n" + text.encode())
        (log / ".0.crc").write_bytes(b"crc")
    group = FakeCluster({NEW: 7}, {OLD: 2})
    assert admit(tmp_path, group, "orders") == {NEW: 7}
    assert (tmp_path / "sources" / "1" / "0").read_bytes() == b'\0v1\n{"orders":{"0":2,"1":7}}'
    assert [path.name for path in (tmp_path / "sources" / "1").iterdir()] == ["0"]
    assert (tmp_path / "sources" / "0" / ".0.crc").exists() and group.offsets == {OLD: 2, NEW: 7}
    assert admit(tmp_path, group, "orders") == {}


def test_a_source_that_a_query_reads_twice_in_its_first_batch(tmp_path):
    """Such a source has two lines in the batch, but one file of initial offsets, so lines do not identify files."""
    planned(tmp_path, ['{"orders":{"0":4,"1":9}}', '{"orders":{"0":4,"1":9}}', '{"visits":{"3":9}}'])
    for source, text in enumerate(['{"orders":{"0":2,"1":7}}', '{"visits":{"3":5}}']):
        log = tmp_path / "sources" / str(source)
        log.mkdir(parents=True)
        (log / "0").write_bytes(b"\0v1\n" + text.encode())
    assert admit(tmp_path, FakeCluster({}), "orders") == {}


def test_a_checkpoint_without_new_partitions(tmp_path):
    planned(tmp_path, ['{"orders":{"0":4}}'])
    assert admit(tmp_path, FakeCluster({}), "orders") == {}
    assert admit(tmp_path / "none", FakeCluster({}), "orders") == {}
