"""`odradek log`: exit codes, selection, output, and that nothing changes."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import HIGH_WATERMARKS_FILE
from odradek.log.storage.filesystem import OsFileSystem
from odradek.tools.cli.main import main
from odradek.tools.logs.tests.support import COUNT, StoredDirectory


@pytest.fixture
def stored(tmp_path: Path) -> StoredDirectory:
    return StoredDirectory(f"{tmp_path}/data/topic-0", OsFileSystem())


def hash_files(directory: str) -> dict[str, tuple[int, str]]:
    """Return the modification time and the hash of each file."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in Path(directory).rglob("*")
        if path.is_file()
    }


def test_verify_exits_with_0_for_an_intact_directory(stored: StoredDirectory, capsys):
    before = hash_files(stored.root)
    assert main(["log", "verify", stored.root]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"1 partition, {COUNT + 2} batches, {COUNT + 2} records, ")
    assert out.endswith(" bytes checked: 0 errors, 0 warnings, 0 notes\n")
    assert hash_files(stored.root) == before


def test_verify_exits_with_1_for_damage_and_leaves_it(stored: StoredDirectory, capsys):
    stored.flip(1, 1, 65)
    before = hash_files(stored.root)
    assert main(["log", "verify", stored.root]) == 1
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first == f"error (batch): {stored.path(1, '.log')}, byte {stored.positions[1][1]}"
    assert "does not match its checksum" in second
    assert third.startswith("    -> ")
    assert main(["log", "verify", "--json", stored.root]) == 1
    *findings, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (findings[0]["severity"], findings[0]["check"]) == ("error", "batch")
    assert findings[0]["position"] == stored.positions[1][1]
    assert summary["errors"] == len([each for each in findings if each["severity"] == "error"])
    assert main(["log", "dump", stored.root]) == 0
    assert hash_files(stored.root) == before


def test_verify_selects_topics_and_the_check_of_records(stored: StoredDirectory, capsys):
    stored.flip(1, 1, 65)
    for command in ("verify", "dump"):
        assert main(["log", command, "--topic", "topics", stored.root]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", "odradek: there is no partition of topic topics; did you mean topic?\n")
    assert main(["log", "verify", "--no-records", "--topic", "topic", stored.root]) == 1


def test_dump_selects_files_and_offsets(stored: StoredDirectory, capsys):
    assert main(["log", "dump", "--json", "--only", "snapshot", "--only", "txnindex", stored.root]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["type"] for row in rows} == {"producer", "aborted_transaction"}
    assert main(["log", "dump", "--json", "--records", "--from-offset", "20", "--max-records", "9", stored.root]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["offset"] for row in rows if row["type"] == "record"] == list(range(20, 29))
    needed = [number for number, base in enumerate(stored.bases) if 20 <= base < 29]
    assert {row["file"] for row in rows} == {stored.path(number, ".log") for number in needed}
    assert stored.bases[needed[0]] == 20


def test_dump_of_a_topic_has_no_entries_of_others(stored: StoredDirectory, capsys):
    fs = OsFileSystem()
    checkpoints.write_offsets(fs, f"{stored.root}/{HIGH_WATERMARKS_FILE}", {("topic", 0): 7, ("other", 0): 8})
    assert main(["log", "dump", "--json", "--topic", "topic", "--only", "checkpoint", stored.root]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    watermarks = [row for row in rows if row["file"].endswith(HIGH_WATERMARKS_FILE)]
    assert [(row["topic"], row["offset"]) for row in watermarks] == [("topic", 7)]


def test_a_dump_ends_when_its_reader_has_closed_the_pipe(stored: StoredDirectory):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "odradek", "log", "dump", "--json", stored.root]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_dumped(stored: StoredDirectory, capsys):
    missing = Path(stored.directory, "00000000000000000099.log")
    missing.symlink_to("missing")
    assert main(["log", "dump", "--json", stored.root]) == 1
    out, err = capsys.readouterr()
    assert json.loads(err) == {"error": {"code": "FAILED", "message": f"{missing}: No such file or directory"}}
    assert "00000000000000000000.log" in out


def test_a_deleted_segment_is_dumped_only_if_it_is_named(stored: StoredDirectory, capsys):
    path = Path(stored.path(0, ".log"))
    deleted = path.rename(f"{path}.deleted")
    assert main(["log", "dump", "--json", stored.root]) == 0
    assert str(deleted) not in capsys.readouterr().out
    assert main(["log", "dump", "--json", str(deleted)]) == 0
    assert str(deleted) in capsys.readouterr().out


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_partition_of_another_topic_is_not_selected(stored: StoredDirectory, capsys, command):
    other = Path(stored.root, "other-0")
    shutil.copytree(Path(stored.root, "topic-0"), other)
    assert main(["log", command, str(other), f"{stored.root}/topic-0", "--topic", "topic", "--json"]) == 0
    out = capsys.readouterr().out
    assert "other-0" not in out and (command == "dump" or '"partitions": 1' in out)


def test_dump_of_one_file(stored: StoredDirectory, capsys):
    path = stored.path(0, ".index")
    assert main(["log", "dump", path, path]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [f"Dumping {path}", "offset: 1 position: 70"]


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_paths_that_are_no_log_are_refused(stored: StoredDirectory, capsys, tmp_path: Path, command: str):
    missing, other = tmp_path / "missing", tmp_path / "other"
    assert main(["log", command, str(missing)]) == 2
    assert capsys.readouterr().err == f"odradek: {missing} does not exist\n"
    other.write_bytes(b"")
    assert main(["log", command, str(other)]) == 2
    assert capsys.readouterr().err.startswith(f"odradek: {other} is no ")


def test_an_unknown_kind_is_refused(stored: StoredDirectory, capsys):
    assert main(["log", "dump", "--only", "logs", stored.root]) == 2
    assert "logs is none of log, index, " in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal_only(stored: StoredDirectory, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert main(["log", "verify", stored.root]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["log", "verify", stored.root]) == 0
    captured = capsys.readouterr()
    assert "verifying" in captured.err
    assert captured.out.endswith("0 notes\n")
