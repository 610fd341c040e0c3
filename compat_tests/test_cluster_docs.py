"""The commands of docs/cluster.md, run as written, in one directory; only addresses are replaced."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import odradek
from compat_tests.apache_kafka import tools
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble, find_ports

PAGE = (Path(odradek.__file__).parent.parent / "docs" / "cluster.md").read_text("utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
TIMEOUT_S = 180
PIDS = ("broker-1.pid", "broker-2.pid", "broker-3.pid", "broker-4.pid")
COMMANDS = {
    "odradek": [sys.executable, "-m", "odradek"],
    "python": [sys.executable],
    "kafka-topics.sh": tools.TOPICS,
    "kafka-reassign-partitions.sh": tools.REASSIGN_PARTITIONS,
    "kafka-leader-election.sh": tools.LEADER_ELECTION,
}

pytestmark = [
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(600),
]


class Shell:
    """Runs blocks of the page in `directory`, with the page's commands in PATH."""

    def __init__(self, directory: Path, zookeeper_connect: str) -> None:
        self.directory = directory
        self._zookeeper_connect = zookeeper_connect
        # The page has ports 9091 to 9094.
        self._first_port = self._find_first_port()
        commands = directory / "bin"
        commands.mkdir()
        for name, command in COMMANDS.items():
            words = tools.command(command, []) if isinstance(command, str) else command
            (commands / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (commands / name).chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}

    @staticmethod
    def _find_first_port() -> int:
        """Return a port in whose decade the next ones can be formed by the page's `909$id`."""
        return next(port for port in find_ports(200) if port % 10 == 1)

    def run(self, block: str) -> str:
        """Run a block, which ends at the first command that fails; return its output."""
        prefix = str(self._first_port)[:-1]
        text = block.replace("127.0.0.1:2181", self._zookeeper_connect).replace(":909", f":{prefix}")
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{self._logs()}"
        return done.stdout

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.directory.glob("broker-*.log")))

    def kill_brokers(self) -> None:
        """Kill the brokers that the page has started."""
        for name in PIDS:
            if (self.directory / name).exists():
                subprocess.run(["kill", "-KILL", (self.directory / name).read_text().strip()], check=False)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with ZooKeeperEnsemble(directory=tmp_path / "zookeeper", tick_ms=1000) as zookeeper:
        shell = Shell(tmp_path, zookeeper.connect)
        yield shell
        shell.kill_brokers()


def test_the_commands_of_the_page(shell):
    blocks = iter(BLOCKS)

    def run_next(word: str) -> str:
        block = next(blocks)
        assert word in block
        return shell.run(block)

    run_next("cat > broker-$id.properties")
    run_next("odradek start")
    assert "Created topic orders." in run_next("kafka-topics.sh")
    table, _, document = run_next("--json").partition("{")
    assert "brokers           3\n" in table and "partitions        8 in 2 topics\n" in table
    assert json.loads("{" + document)["healthy"]
    run_next("broker.id=4")
    run_next("--generate")
    assert any(
        "4" in str(row["replicas"]) for row in json.loads((shell.directory / "plan.json").read_text())["partitions"]
    )
    assert list((shell.directory / "data-4").glob("orders-*"))
    run_next("alter-reassignments")
    assert "brokers           4\n" in run_next("rm -r data-2")
    assert list((shell.directory / "data-2").glob("orders-*"))
    run_next("for id in 1 2 3 4")
    run_next("kafka-leader-election.sh")
    run_next("for id in 4 3 2 1")
    assert list(blocks) == []


def test_the_fixture_of_the_page(tmp_path):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_page.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
