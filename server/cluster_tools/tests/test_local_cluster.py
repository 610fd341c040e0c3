"""LocalCluster with stand-ins for the brokers."""

import json
import re
import signal
import sys

import pytest

from odradek.log.storage.file_lock import LockedError
from odradek.log.storage.log_directory import LogDirectory
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.server.cluster_tools import local_cluster
from odradek.server.cluster_tools.child_process import start_process
from odradek.server.cluster_tools.local_cluster import LocalCluster
from odradek.server.cluster_tools.local_directory import LocalDirectory

WAIT = "import signal; signal.pause()"
REFUSED = "print('TIME ERROR x cannot start: the id 1 is in use by another broker'); raise SystemExit(1)"


class Processes:
    """The processes that are started, each with the next program; OSError after the last one."""

    def __init__(self, *programs):
        self.programs = list(programs)
        self.started = []

    def start(self, command, output, directory):
        if not self.programs:
            raise OSError("too many open files")
        process = start_process([sys.executable, "-c", self.programs.pop(0)], output, directory)
        self.started.append(process)
        return process


@pytest.fixture
def handlers():
    """Restore the handlers of signals."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def run(handlers, monkeypatch, tmp_path):
    """Run a cluster of `size` with an existing ZooKeeper; return the processes and the error."""
    monkeypatch.setattr(local_cluster, "_RETRY_S", 0.01)

    def run(size, *programs, log_format="text"):
        directory = LocalDirectory(tmp_path)
        processes = Processes(*programs)
        monkeypatch.setattr(local_cluster, "start_process", processes.start)
        cluster = LocalCluster(directory, directory.set_up(size, 0, "127.0.0.1:1"), [], "info", log_format)
        with pytest.raises(OSError, match="too many open files"):
            cluster.run()
        return processes.started

    return run


def ended(process):
    return process.wait(60) == -signal.SIGTERM


def test_a_broker_that_cannot_be_started_stops_the_others(run):
    [first] = run(2, WAIT)
    assert ended(first)


def test_a_broker_that_cannot_be_started_again_stops_the_others(run):
    first, refused = run(2, WAIT, REFUSED)
    assert ended(first)
    assert refused.returncode == 1


def test_a_broker_whose_directory_is_locked_is_not_started_again(monkeypatch, handlers, tmp_path):
    """Its error must not be taken for that of an id whose session has not expired."""
    filesystem = MemoryFileSystem()
    LogDirectory(filesystem, "/data").lock()
    with pytest.raises(LockedError) as raised:
        LogDirectory(filesystem, "/data").lock()
    program = f"print('TIME ERROR x cannot start: ' + {str(raised.value)!r}); raise SystemExit(1)"
    processes = Processes(program)
    monkeypatch.setattr(local_cluster, "start_process", processes.start)
    directory = LocalDirectory(tmp_path)
    assert LocalCluster(directory, directory.set_up(1, 0, "127.0.0.1:1"), [], "info", "text").run() == 1
    assert len(processes.started) == 1


def test_lines_of_json_have_the_name_of_their_process_as_a_field(run, capfdbinary):
    object_line = json.dumps({"time": "T", "level": "ERROR", "message": "the id 1 is in use by another broker"})
    run(1, f"print({object_line!r}); print('a line of another program'); raise SystemExit(1)", log_format="json")
    out = capfdbinary.readouterr().out.decode().splitlines()
    first, second, third = out
    assert json.loads(first) == {**json.loads(object_line), "process": "broker 1"}
    assert second == "broker 1 | a line of another program"
    report = json.loads(third)
    assert report["message"].startswith("broker 1 starts again") and report["process"] == "cluster"


@pytest.mark.parametrize(
    ("ids", "missing"), [("7,101,102", []), ("101", ["broker 1", "broker 2"]), ("7,101", ["broker 1", "broker 2"])]
)
def test_the_brokers_in_the_metadata_of_each_are_awaited(handlers, monkeypatch, tmp_path, capfd, ids, missing):
    """The ids are those of edited files, and 7 is another's broker. They are not awaited for ever."""
    program = (
        "print('T INFO server.broker odradek started address=127.0.0.1:1 data=/d', flush=True)\n"
        f"print('T INFO server.membership.live_brokers live brokers ids={ids}', flush=True)\n{WAIT}"
    )
    monkeypatch.setattr(local_cluster, "start_process", Processes(program, program).start)
    if missing:
        monkeypatch.setattr(local_cluster, "_METADATA_S", 0.05)
    monkeypatch.setattr(LocalCluster, "_serve", lambda self: 0)
    directory = LocalDirectory(tmp_path)
    for broker in directory.set_up(2, 0, "127.0.0.1:1"):
        broker.file.write_text(broker.file.read_text().replace("broker.id=", "broker.id=10"))
    assert LocalCluster(directory, directory.read_brokers(), [], "info", "text").run() == 0
    reports = [line for line in capfd.readouterr().out.splitlines() if line.startswith("cluster ")]
    found = [re.search(r"(broker \d) has only 1 of 2 brokers in its metadata", line) for line in reports]
    assert [match[1] for match in found if match] == missing
    assert "started bootstrap_servers=127.0.0.1:1,127.0.0.1:1 " in reports[-2]
