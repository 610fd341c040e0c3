import os
import subprocess
import sys

import pytest

from odradek.spark_it.dead_letters import headers as connect_headers
from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, FailureStage, RecordOrigin
from odradek.spark_it.state.files import write_atomically
from odradek.spark_it.state.pid_lock import AlreadyRunningError, find_holder, hold_lock
from odradek.spark_it.state.progress import Progress, read_progress, write_progress

FAILURE = Failure(FailureStage.VALUE_CONVERTER, "formats.json", "ValueError", "no JSON: {", "line 1\nline 2")


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "a" / "file"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two" and [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path):
    (tmp_path / "file" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError):
        write_atomically(tmp_path / "file", "one")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_progress(tmp_path):
    assert read_progress(tmp_path) is None
    progress = Progress(batch=3, at_ms=5, read=10, written=9, dead_lettered=1, rows_per_second=2.5, last_error="down")
    write_progress(tmp_path, progress)
    assert read_progress(tmp_path) == progress
    (tmp_path / "progress.json").write_text('{"batch": 1, "at_ms": 2, "of a later version": 3}')
    assert read_progress(tmp_path) == Progress(batch=1, at_ms=2)
    for text in ("", "[]", '{"batch": 1}'):
        (tmp_path / "progress.json").write_text(text)
        assert read_progress(tmp_path) is None


def test_a_pipeline_runs_in_one_process(tmp_path):
    state = tmp_path / "orders"
    assert find_holder(state) is None
    with hold_lock(state):
        other = "import sys; from pathlib import Path; from odradek.spark_it.state.pid_lock import find_holder; " + (
            "print(find_holder(Path(sys.argv[1])))"
        )
        said = subprocess.run([sys.executable, "-c", other, state], capture_output=True, text=True, check=True).stdout
        assert int(said) == os.getpid() == find_holder(state)
        running = pytest.raises(AlreadyRunningError, match=f"is already running as process {os.getpid()}")
        with running, hold_lock(state):
            pass
    assert find_holder(state) is None
    with hold_lock(state):
        pass


def test_headers_of_a_dead_letter():
    added = connect_headers.make_error_headers(RecordOrigin("orders", 2, 17), FAILURE, connector_name="shop", task_id=4)
    assert added == [
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"2"),
        ("__connect.errors.offset", b"17"),
        ("__connect.errors.connector.name", b"shop"),
        ("__connect.errors.task.id", b"4"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", b"formats.json"),
        ("__connect.errors.exception.class.name", b"ValueError"),
        ("__connect.errors.exception.message", b"no JSON: {"),
        ("__connect.errors.exception.stacktrace", b"line 1\nline 2"),
    ]
    original = [("a", b"1"), ("a", None), ("é", b"\xff")]
    letter = connect_headers.replace_error_headers(original, added)
    assert letter == original + added
    assert connect_headers.remove_error_headers(letter) == original
    assert connect_headers.find_origin(letter) == RecordOrigin("orders", 2, 17)
    assert connect_headers.replace_error_headers(letter, added) == letter


def test_a_dead_letter_that_was_not_read_from_a_topic():
    failure = FAILURE._replace(stacktrace=None)
    added = connect_headers.make_error_headers(None, failure, connector_name="shop", task_id=0)
    assert "__connect.errors.topic" not in dict(added)
    assert dict(added)["__connect.errors.exception.stacktrace"] is None
    assert connect_headers.find_origin(added) is None
    damaged = [(connect_headers.TOPIC, b"t"), (connect_headers.PARTITION, b"x"), (connect_headers.OFFSET, b"1")]
    assert connect_headers.find_origin(damaged) is None


def test_a_bad_record_that_stops_the_pipeline():
    error = BadRecordError(RecordOrigin("orders", 2, 17), FAILURE)
    assert str(error) == "record orders-2 at offset 17: no JSON: { (VALUE_CONVERTER in formats.json)"
