"""Command line of the broker: arguments, errors, properties, and lines of the log."""

import logging
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

import odradek
from odradek.properties import INT32_MAX
from odradek.server import cli
from odradek.server.event_log.setup import configure_logging

DOCS = Path(odradek.__file__).parent.parent / "docs"


def run(*arguments):
    command = [sys.executable, "-m", "odradek", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"odradek {odradek.__version__}\n")


def test_the_first_process_of_a_container_ends_by_sigterm_before_the_start():
    """The kernel ignores a signal without a handler for the process 1."""
    script = (
        "import os, signal, sys, time\n"
        "os.getpid = lambda: 1\n"
        "from odradek import __main__\n"
        "from odradek.server import cli\n"
        "cli.main = lambda: (signal.raise_signal(signal.SIGTERM), time.sleep(60))\n"
        "sys.argv = ['odradek', 'start']\n"
        "__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGTERM


def test_a_bad_value_exits_with_code_2_and_one_line():
    done = run("start", "--override", "num.partitions=none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "odradek: Invalid value none for configuration num.partitions: expected a 32-bit integer\n"


def test_each_error_is_reported_in_its_own_line():
    wrong = ["num.partitions=none", "listeners=nowhere", "log.segment.bytes=1", "default.replication.factor=x"]
    done = run("start", *(f"--override={one}" for one in wrong))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith("odradek: Invalid value ") for line in lines)
    names = [line.split(" for configuration ")[1].split(":")[0] for line in lines]
    assert sorted(names) == sorted(one.partition("=")[0] for one in wrong)


def fail(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["start", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["start", "--override", "num.partitions"], "--override num.partitions is not name=value"),
        (["start", "--override", "group.min.session.timeout.ms=9000000"], "must be at least group.min.session"),
        (["start", "--override", "listeners=nowhere"], "Invalid value nowhere for configuration listeners: must be"),
        (["start", "--overide", "a=b"], "arguments: --overide; did you mean --override? (see odradek --help)"),
        (["start", "--verbose"], "unrecognized arguments: --verbose (see odradek --help)"),
        (["start", "--log-level", "loud"], "argument --log-level: invalid choice: 'loud'"),
    ],
)
def test_an_error_is_reported_in_one_line(capsys, arguments, message):
    assert message in fail(capsys, *arguments)


def test_each_contradiction_and_each_malformed_override_has_a_line(capsys):
    with pytest.raises(SystemExit):
        cli.main(
            [
                "start",
                "--override=node.id=1",
                "--override=broker.id=2",
                "--override=group.min.session.timeout.ms=9000000",
            ]
        )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "broker.id" in lines[0]
    assert "group.max.session.timeout.ms" in lines[1]
    with pytest.raises(SystemExit):
        cli.main(["start", "--override=a", "--override=b", "--override=num.partitions=x"])
    assert capsys.readouterr().err.splitlines() == [
        f"odradek: --override {name} is not name=value" for name in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("properties", "overrides", "listeners", "log_dirs"),
    [
        (None, [], "PLAINTEXT://127.0.0.1:9092", ("./data",)),
        ("num.partitions=3", ["auto.create.topics.enable=false"], "PLAINTEXT://127.0.0.1:9092", ("./data",)),
        ("listeners=PLAINTEXT://:9092", [], "PLAINTEXT://:9092", ("./data",)),
        ("advertised.listeners=PLAINTEXT://h:9092", [], "PLAINTEXT://:9092", ("./data",)),
        ("log.dirs=/a,/b", [], "PLAINTEXT://127.0.0.1:9092", ("/a", "/b")),
        ("log.dir=/a", ["listeners=PLAINTEXT://h:1"], "PLAINTEXT://h:1", ("/a",)),
        (None, ["log.dirs=/a"], "PLAINTEXT://127.0.0.1:9092", ("/a",)),
    ],
)
def test_listeners_and_log_directories_of_file_and_overrides(tmp_path, properties, overrides, listeners, log_dirs):
    from odradek.server.config import load_config

    path = None
    if properties is not None:
        path = tmp_path / "server.properties"
        path.write_text(properties)
    config = load_config(path and str(path), overrides).config
    assert (config.text("listeners"), config.data_dirs) == (listeners, log_dirs)


def test_a_start_first_prints_listeners_and_log_directories(monkeypatch, capsys, tmp_path):
    from odradek.server import broker

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(broker, "run", lambda config, started_s: 0)
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    try:
        assert cli.main(["start", "--override=unknown=1"]) == 0
    finally:
        root.handlers[:], root.level, logging.raiseExceptions = before
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" INFO server.cli starting listeners=PLAINTEXT://127.0.0.1:9092 log_dirs=./data")
    assert "unknown property unknown is ignored" in second
    assert list(tmp_path.iterdir()) == []


def test_errors_in_a_file_are_reported(capsys, tmp_path):
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\\u12")
    assert "malformed" in fail(capsys, "start", str(path))


def test_the_sample_configuration_is_accepted_without_warning():
    from odradek.server.config import load_config

    assert load_config(str(DOCS / "server.properties")).warnings == []


@pytest.fixture
def log():
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    stream = StringIO()
    configure_logging("info", stream)
    yield stream
    root.handlers[:], root.level, logging.raiseExceptions = before


def test_an_event_is_one_line(log):
    logging.getLogger("odradek.server.broker").info("started address=%s", "127.0.0.1:1")
    logging.getLogger("odradek.server.broker").debug("unseen")
    time, rest = log.getvalue().split(" ", 1)
    assert rest == "INFO server.broker started address=127.0.0.1:1\n"
    assert len(time) == len("2025-03-01T12:00:00.123Z") and time.endswith("Z")


def test_text_from_outside_cannot_forge_a_line(log):
    logging.getLogger("odradek.x").warning("client=%s", "a\nERROR b\x1b[0m\r\t")
    assert log.getvalue().endswith("WARNING x client=a\\nERROR b\\x1b[0m\\r\\t\n")
    assert log.getvalue().count("\n") == 1


def test_a_traceback_is_indented(log):
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("odradek.x").exception("failed n=%d", INT32_MAX)
    lines = log.getvalue().splitlines()
    assert lines[0].endswith("ERROR x failed n=2147483647")
    assert lines[1] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in lines[1:])
