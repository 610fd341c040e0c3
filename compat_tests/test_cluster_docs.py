"""The commands of docs/cluster.md, run as written, in one directory; only addresses are replaced."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.pages import PageShell, read_blocks, read_page
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble, find_ports

PAGE = read_page("cluster.md")
TIMEOUT_S = 180
PIDS = ("broker-1.pid", "broker-2.pid", "broker-3.pid", "broker-4.pid")
pytestmark = [
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(600),
]


class Shell(PageShell):
    """Runs blocks of the page, whose ports are 9091 to 9094."""

    def __init__(self, directory: Path, zookeeper_connect: str) -> None:
        # A port in whose decade the next ones can be formed by the page's `909$id`.
        first_port = next(port for port in find_ports(200) if port % 10 == 1)
        addresses = {"127.0.0.1:2181": zookeeper_connect, ":909": f":{str(first_port)[:-1]}"}
        super().__init__(directory, addresses, log_pattern="broker-*.log")

    def kill_brokers(self) -> None:
        """Kill the brokers that the page has started."""
        for name in PIDS:
            self.kill(name)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with ZooKeeperEnsemble(directory=tmp_path / "zookeeper", tick_ms=1000) as zookeeper:
        shell = Shell(tmp_path, zookeeper.connect)
        yield shell
        shell.kill_brokers()


def test_the_commands_of_the_page(shell):
    blocks = iter(read_blocks("cluster.md"))

    def run_next(word: str) -> str:
        block = next(blocks)
        assert word in block
        return shell.run(block)

    run_next("cat > broker-$id.properties")
    run_next("odradek start")
    assert "topic orders created with 6 partitions, 3 replicas" in run_next("topic create")
    table, _, document = run_next("--json").partition("{")
    assert "brokers           3\n" in table and "partitions        8 in 2 topics\n" in table
    assert json.loads("{" + document)["healthy"]
    run_next("broker.id=4")
    run_next("reassign plan")
    assert any(
        "4" in str(row["replicas"]) for row in json.loads((shell.directory / "plan.json").read_text())["partitions"]
    )
    assert list((shell.directory / "data-4").glob("orders-*"))
    run_next("reassign apply move.json")
    assert "brokers           4\n" in run_next("rm -r data-2")
    assert list((shell.directory / "data-2").glob("orders-*"))
    run_next("for id in 1 2 3 4")
    run_next("partition elect")
    run_next("for id in 4 3 2 1")
    assert list(blocks) == []


def test_the_fixture_of_the_page(tmp_path):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_page.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
