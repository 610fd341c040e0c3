"""The spool of a JDBC source: polls on disk, with one writer at a time."""

import contextlib
import fcntl
import threading

import pyarrow as pa
import pytest

from odradek.spark_it.sources import jdbc as jdbc_source
from odradek.spark_it.sources.jdbc_spool import LastPoll, Spool, SpoolFencedError
from spark_it.tests.unit.support import UNUSED


def claimed(folder):
    spool = Spool(folder)
    spool.claim()
    return spool


def rows(first, last):
    return pa.table({"id": list(range(first, last + 1))})


def contents(spool):
    return [pa.parquet.read_table(path).column("id").to_pylist() for path in sorted(spool.rows.glob("*.parquet"))]


def test_polls_on_disk(tmp_path):
    spool = claimed(tmp_path)
    assert spool.read_last() == LastPoll(-1, {})
    for number in range(5):
        assert spool.add(rows(number, number), {"end": str(number)}, number - 1) == number
    times = [path.stat().st_mtime for path in sorted(spool.rows.iterdir())]
    assert times == sorted(set(times))
    # A writer killed before the rename leaves a file that does not count.
    (spool.rows / "000000000004.parquet").rename(spool.rows / ".000000000004.killed.new")
    spool = claimed(tmp_path)
    assert spool.read_last() == LastPoll(3, {"end": "3"})
    spool.drop_before(2)
    assert sorted(path.name for path in spool.rows.iterdir()) == ["000000000002.parquet", "000000000003.parquet"]
    assert Spool(tmp_path).read_last() == LastPoll(3, {"end": "3"})
    assert spool.add(rows(9, 9), {"end": "9"}, 3) == 4
    spool.clear()
    assert spool.find_last_number() == -1


def test_an_earlier_writer_changes_nothing(tmp_path):
    old = claimed(tmp_path)
    old.add(rows(1, 10), {"end": "10"}, -1)
    new = claimed(tmp_path)
    for late in (
        lambda: old.add(rows(11, 20), {"end": "20"}, 0),
        lambda: old.drop_before(1),
        old.clear,
        lambda: Spool(tmp_path).clear(),
    ):
        with pytest.raises(SpoolFencedError):
            late()
    new.add(rows(11, 15), {"end": "15"}, 0)
    assert contents(new) == [[*range(1, 11)], [*range(11, 16)]]
    assert [path for path in new.rows.iterdir() if path.suffix != ".parquet"] == []


def test_a_poll_with_another_predecessor_is_refused(tmp_path):
    spool = claimed(tmp_path)
    spool.add(rows(1, 10), {"end": "10"}, -1)
    for after in (-1, 1):
        with pytest.raises(SpoolFencedError):
            spool.add(rows(1, 20), {"end": "20"}, after)
    assert contents(spool) == [[*range(1, 11)]]


@pytest.mark.parametrize("ends", ["claimed", "cleared", "deleted"])
def test_a_write_that_was_checked_before_the_claim_is_refused(tmp_path, monkeypatch, ends):
    """As on a file system whose locks do not reach other machines."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    old = claimed(tmp_path / "spool")
    old.add(rows(1, 10), {"end": "10"}, -1)
    last_number = old.find_last_number

    def compared_and_late():
        found = last_number()
        if ends == "deleted":
            (tmp_path / "spool").rename(tmp_path / "away")
        else:
            new = claimed(tmp_path / "spool")
            if ends == "cleared":
                new.clear()
        return found

    monkeypatch.setattr(old, "find_last_number", compared_and_late)
    with pytest.raises(SpoolFencedError):
        old.add(rows(11, 20), {"end": "20"}, 0)
    assert contents(Spool(tmp_path / "spool")) == ([[*range(1, 11)]] if ends == "claimed" else [])


def test_writers_that_take_the_spool_from_each_other(tmp_path):
    """Each writer adds the ten numbers after the last one, as a poll does."""
    failures = []

    def write():
        try:
            for _ in range(5):
                spool = claimed(tmp_path)
                with contextlib.suppress(SpoolFencedError):
                    for _ in range(5):
                        number, reached = spool.read_last()
                        end = int(reached.get("end", 0))
                        spool.add(rows(end + 1, end + 10), {"end": str(end + 10)}, number)
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    polls = contents(Spool(tmp_path))
    # The last writer to claim the spool is never fenced.
    assert len(polls) >= 5
    assert [number for poll in polls for number in poll] == [*range(1, 10 * len(polls) + 1)]


def event(spool, taken):
    """A progress event of a query that has read the polls up to `taken`."""
    return {"sources": [{"description": f"FileStreamSource[file:{spool.rows}]", "endOffset": {"logOffset": taken}}]}


def test_polls_of_an_earlier_run_are_not_deleted_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jdbc_source, "RETAINED_POLLS", 1)
    spool = claimed(tmp_path)
    for number in range(10):
        spool.add(rows(number, number), {"end": str(number)}, number - 1)
    poller = jdbc_source._Poller("t", UNUSED, spool, UNUSED, 0.1)
    for taken, first in ((0, 0), (3, 2), (9, 8)):
        poller._drop_processed(event(spool, taken))
        assert min(int(path.stem) for path in spool.rows.iterdir()) == first
    poller._drop_processed(None)
