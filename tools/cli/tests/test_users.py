"""`odradek user`: users in the store of a broker that is stopped, or was never started."""

import json
import socket
import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from odradek.log.storage.filesystem import OsFileSystem
from odradek.replication.metadata.kraft_security import UserScramCredentialRecord
from odradek.replication.tests import kraft
from odradek.testing import OdradekBroker
from odradek.tools.cli.main import main
from odradek.tools.cli.security import users
from odradek.tools.cli.session import CommandError


def parse(text: str) -> dict[str, str]:
    """Return the iterations of each user in a table."""
    return dict(line.split(None, 1) for line in text.splitlines()[1:])


def run(data: Path, *arguments: str, stdin: str = "") -> Any:
    command = [sys.executable, "-m", "odradek", "user", *arguments, "--override", f"log.dirs={data}"]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


def test_users_are_added_listed_and_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert parse(run(data, "list").stdout) == {}
    assert run(data, "add", "alice", stdin="secret\n").returncode == 0
    added = run(data, "add", "bob", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192", stdin="secret")
    assert (added.returncode, added.stdout, added.stderr) == (0, "user bob created\n", "")
    listed = json.loads(run(data, "list", "--json").stdout)
    assert listed == [
        {"user": "alice", "iterations": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}},
        {"user": "bob", "iterations": {"SCRAM-SHA-512": 8192}},
    ]
    assert run(data, "delete", "alice", "--mechanism", "SCRAM-SHA-256", "--yes").returncode == 0
    assert run(data, "remove", "bob", "--yes").returncode == 0
    assert parse(run(data, "list").stdout) == {"alice": "SCRAM-SHA-512=4096"}
    altered = run(data, "alter", "alice", "--iterations", "5000", stdin="other\n")
    assert (altered.returncode, altered.stdout) == (0, "user alice altered\n")
    assert parse(run(data, "list").stdout) == {"alice": "SCRAM-SHA-512=5000"}
    again = run(data, "remove", "bob", "--yes")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == "odradek: user bob has no credential of SCRAM-SHA-256 or SCRAM-SHA-512\n"


def test_a_user_is_added_before_the_first_start_and_while_the_broker_is_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run(data, "add", "alice", stdin="secret\n").returncode == 0
    with OdradekBroker({"log.dirs": str(data)}) as broker:
        refused = run(data, "add", "bob", stdin="secret\n")
        assert refused.returncode == 1
        assert refused.stderr == (
            "odradek: the broker is running, with its metadata store open: stop it, or use --bootstrap-server\n"
        )
        broker.stop()
        assert run(data, "add", "bob", stdin="secret\n").returncode == 0
        broker.start()
        broker.stop()
        assert list(parse(run(data, "list").stdout)) == ["alice", "bob"]


def test_dry_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run(data, "add", "alice", "--mechanism", "SCRAM-SHA-256", stdin="secret\n").returncode == 0
    for command, after in (
        (["create", "alice", "--iterations", "5000"], {"SCRAM-SHA-256": (4096, 5000), "SCRAM-SHA-512": (None, 5000)}),
        (["alter", "alice", "--iterations", "5000"], {"SCRAM-SHA-256": (4096, 5000)}),
        (["delete", "alice"], {"SCRAM-SHA-256": (4096, None)}),
    ):
        planned = json.loads(run(data, *command, "--dry-run", "--json", stdin="other\n").stdout)
        changes = {row["mechanism"]: (row["iterations"], row["new_iterations"]) for row in planned["changes"]}
        assert changes == after
    for verb in ("alter", "delete"):
        refused = run(data, verb, "bob", "--dry-run", stdin="other\n")
        assert (refused.returncode, refused.stderr) == (1, "odradek: user bob does not exist\n")
    assert parse(run(data, "list").stdout) == {"alice": "SCRAM-SHA-256=4096"}


@pytest.mark.parametrize(
    "command",
    [
        ["user", "create", "alice", "--dry-run"],
        ["acl", "create", "--allow-principal", "User:a", "--topic", "t", "--dry-run"],
        ["token", "create", "--dry-run"],
    ],
)
def test_a_dry_run_without_a_broker(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("secret\n"))
    assert main([*command, "--bootstrap-server", "127.0.0.1:1"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("odradek: 127.0.0.1:1 does not answer: ")


def test_the_password_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\nanother line\n")
    assert run(tmp_path / "data", "add", "alice", "--password-file", str(file)).returncode == 0
    missing = run(tmp_path / "data", "add", "alice", "--password-file", str(tmp_path / "missing"))
    assert (missing.returncode, missing.stderr) == (
        2, f"odradek: --password-file {tmp_path / 'missing'}: No such file or directory\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["add", "alice"], "the password is empty"),
        (["add", "ä"], "user name 'ä': SCRAM permits printable ASCII characters only"),
        (["add", ""], "user name '': SCRAM permits printable ASCII characters only"),
        (["add", "alice", "--iterations", "4095"], "--iterations 4095: must be between 4096 and 16384"),
        (["list", "--store", "missing.properties"], "cannot read missing.properties: No such file or directory"),
        (["list", "--override", "log.segment.bytes=x"], "Invalid value x for configuration log.segment.bytes"),
        (["add", "alice", "--mechanism", "PLAIN"], "invalid value for '--mechanism': 'PLAIN' is not one of"),
    ],
)
def test_an_invalid_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert main(["user", *arguments, "--override", f"log.dirs={tmp_path / 'data'}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"odradek: {error}")
    assert not (tmp_path / "data").exists()


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file" / "data", "list")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "log" in result.stderr


def test_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["secret", "secret", "secret", "other"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(users, "getpass", lambda prompt: next(answers))
    assert users.read_password(None) == "secret"
    with pytest.raises(CommandError, match="differ"):
        users.read_password(None)


def test_the_end_of_input_at_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpass(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(users, "getpass", getpass)
    with pytest.raises(CommandError, match="no password was entered"):
        users.read_password(None)


def test_users_and_acls_of_a_new_store_outlive_a_start_that_fails(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run(data, "add", "alice", stdin="secret\n").returncode == 0
    rule = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "t")
    acl = [sys.executable, "-m", "odradek", "acl"]
    at_data = ("--override", f"log.dirs={data}")
    subprocess.run([*acl, "add", *rule, *at_data], check=True, capture_output=True, timeout=60)
    listed = subprocess.run([*acl, "list", *at_data], check=True, capture_output=True, timeout=60).stdout
    assert b"User:alice" in listed
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = f"listeners=PLAINTEXT://127.0.0.1:{other.getsockname()[1]}"
        start = [sys.executable, "-m", "odradek", "start", *at_data, "--override", listener]
        failed = subprocess.run(start, capture_output=True, text=True, timeout=60)
        assert failed.returncode == 1 and "cannot start" in failed.stdout
    with OdradekBroker({"log.dirs": str(data)}) as broker:
        broker.stop()
        assert list(parse(run(data, "list").stdout)) == ["alice"]
        again = subprocess.run([*acl, "list", *at_data], check=True, capture_output=True, timeout=60).stdout
        assert again == listed


def test_a_user_is_added_before_the_directory_of_apache_kafka_is_adopted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    records = [*kraft.topic("t", bytes(15) + b"t")]
    records += [
        UserScramCredentialRecord(name=name, mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=5000)
        for name in ("alice", "carol")
    ]
    kraft.put_log(OsFileSystem(), records, log_directory=str(data))
    refused = run(data, "add", "alice", stdin="secret\n")
    assert refused.returncode == 1 and "set log.dirs.adopt=true" in refused.stderr
    adopts = ("--override", "log.dirs.adopt=true")
    assert run(data, "add", "alice", "--mechanism", "SCRAM-SHA-256", *adopts, stdin="secret\n").returncode == 0
    with OdradekBroker({"log.dirs": str(data), "log.dirs.adopt": "true"}) as broker:
        assert "adopted topics found in log.dirs count=1: t" in broker.log_text()
        broker.stop()
    assert parse(run(data, "list").stdout) == {"alice": "SCRAM-SHA-256=4096", "carol": "SCRAM-SHA-256=5000"}


def test_a_password_that_is_no_text_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for errors in ("strict", "surrogateescape"):
        given = TextIOWrapper(BytesIO(b"secret\xff\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr("sys.stdin", given)
        with pytest.raises(CommandError, match=r"^the password is not UTF-8$"):
            users.read_password(None)
