"""The commands of docs/cluster.md, run as written, in one directory; only addresses and paths are replaced.

Each block of shell commands is run by one of the tests, except INSTALLATION.

`compat_tests.cluster.mixed` reads the properties of Apache Kafka in a mixed cluster from the page.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import limits, processes
from compat_tests.clients.common import wait_until
from compat_tests.cluster.load import NumberedLoad, check_numbers, read_numbers
from compat_tests.cluster.mixed import KAFKA_PROPERTIES
from compat_tests.cluster.strict_readers import ConfluentReader, KafkaPythonReader, StrictReader, wait_for_more
from compat_tests.kill.load import read_whole, running
from compat_tests.pages import PageShell, read_blocks, read_page
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble

PAGE = read_page("cluster.md")
BLOCKS = read_blocks("cluster.md")


def find_block(word: str) -> str:
    """Return the only block that contains a word."""
    [block] = [block for block in BLOCKS if word in block]
    return block


TRIAL = [find_block(word) for word in ("cluster start --brokers 3", "cluster start --brokers 4", "start data-cluster/")]
SETUP, START = (
    find_block("cat > broker-$id.properties"),
    find_block("odradek start broker-$id.properties > broker-$id.log 2>&1 &\necho $! > broker-$id.pid\ndone\n"),
)
LISTENERS = [
    find_block(word)
    for word in ("make-test-certificates", "cat > client.properties", "--command-config client.properties")
]
NEW_ENVIRONMENT = "/opt/odradek-new"
INSTALLATION, NEW_PATH = find_block("pip install"), find_block(f"PATH={NEW_ENVIRONMENT}/bin")
REMAINING = find_block("partition list --internal")
PIDS = ("broker-1.pid", "broker-2.pid", "broker-3.pid", "broker-4.pid")
PARTITIONS = 6
pytestmark = [
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(600),
]


class Shell(PageShell):
    """Runs blocks of the page, whose ports are 9091 to 9094, and 9081 to 9083 between brokers."""

    def __init__(self, directory: Path, zookeeper_connect: str) -> None:
        # The next ports of both decades are formed by the page's `909$id`.
        clients_port, brokers_port = processes.lasting_series(len(PIDS)), processes.lasting_series(len(PIDS))
        self.new_environment = directory / "odradek-new"
        self.bootstrap_servers = f"127.0.0.1:{clients_port}"
        replaced = {
            "127.0.0.1:2181": zookeeper_connect,
            ":909": f":{str(clients_port)[:-1]}",
            ":908": f":{str(brokers_port)[:-1]}",
            NEW_ENVIRONMENT: str(self.new_environment),
        }
        super().__init__(directory, replaced, log_pattern="broker-*.log")

    def kill_brokers(self) -> None:
        """Kill the brokers that the page has started."""
        for name in PIDS:
            self.kill(name)

    def await_partitions(self, topic: str, column: str, expected: list[Any]) -> None:
        """Wait until `partition list` shows a column: a change reaches the metadata of each broker some time later."""
        found: list[Any] = []

        def is_listed() -> bool:
            # The exit code is 1 while a partition has no leader.
            listed = self.run(f"odradek partition list {topic} --json --bootstrap-server 127.0.0.1:9091 || true")
            found[:] = [row[column] for row in json.loads(listed)]
            return found == expected

        wait_until(is_listed, what=lambda: f"{column} of {topic}: {found}")

    def read_throttles(self, topic: str) -> set[str]:
        """Return the throttles of a topic and of broker 1."""
        resources = (f"topic {topic}", "broker 1")
        shown = [self.run(f"odradek config describe {each} --bootstrap-server 127.0.0.1:9091") for each in resources]
        return set(re.findall(r"\S+\.throttled\.\S+", "".join(shown)))

    def make_new_environment(self) -> Path:
        """Make an environment with the tested version instead of an installation; return the list of its commands."""
        commands = self.new_environment / "bin"
        commands.mkdir(parents=True)
        used = self.new_environment / "used"
        text = (self.directory / "bin" / "odradek").read_text()
        (commands / "odradek").write_text(text.replace("exec ", f'echo "$@" >> {shlex.quote(str(used))}\nexec '))
        (commands / "odradek").chmod(0o755)
        return used


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with ZooKeeperEnsemble(directory=tmp_path / "zookeeper", tick_ms=1000) as zookeeper:
        shell = Shell(tmp_path, zookeeper.connect)
        yield shell
        shell.kill_brokers()


# The ISR of both partitions of payments is then broker 2 alone, whose log is lost; broker 1 has their records.
LOSE_LOGS = """
echo '{"version": 1, "partitions": [{"topic": "payments", "partition": 0, "replicas": [2, 1]},
    {"topic": "payments", "partition": 1, "replicas": [2, 1]}]}' > pair.json
odradek partition reassign apply pair.json --yes --bootstrap-server 127.0.0.1:9091
while odradek partition reassign list --bootstrap-server 127.0.0.1:9091 | grep payments; do sleep 0.1; done
for index in 0 1; do
echo kept | odradek record produce payments --partition $index --bootstrap-server 127.0.0.1:9091
done
for id in 1 2; do
kill -TERM $(cat broker-$id.pid)
while kill -0 $(cat broker-$id.pid) 2> /dev/null; do sleep 0.1; done
done
rm -r data-2 broker-1.log broker-2.log
for id in 1 2; do
odradek start broker-$id.properties > broker-$id.log 2>&1 &
echo $! > broker-$id.pid
done
for id in 1 2; do
until grep -qs 'odradek started' broker-$id.log || ! kill -0 $(cat broker-$id.pid); do sleep 0.1; done
done
until grep 'the log of an in-sync replica is missing' broker-2.log; do sleep 0.1; done
"""
AWAIT_REPLICAS = "until odradek cluster status --bootstrap-server 127.0.0.1:9091; do sleep 0.2; done"


def test_the_commands_of_the_page(shell):
    others = (*TRIAL, *LISTENERS, INSTALLATION, NEW_PATH)
    blocks = iter([block for block in BLOCKS if block not in others])

    def run_next(word: str, before: str = "") -> str:
        block = next(blocks)
        assert word in block
        return shell.run(before + block)

    run_next("cat > broker-$id.properties")
    run_next("odradek start")
    assert "topic orders created with 6 partitions, 3 replicas" in run_next("topic create")
    table, _, document = run_next("--json").partition("{")
    assert "brokers           3\n" in table and "partitions        8 in 2 topics\n" in table
    assert json.loads("{" + document)["healthy"]

    run_next("broker.id=4")
    run_next("reassign apply plan.json --throttle")
    assert any(
        "4" in str(row["replicas"]) for row in json.loads((shell.directory / "plan.json").read_text())["partitions"]
    )
    wait_until(lambda: "leader.replication.throttled.rate" in shell.read_throttles("orders"))
    run_next("reassign unthrottle")
    assert list((shell.directory / "data-4").glob("orders-*"))
    wait_until(lambda: not shell.read_throttles("orders"))
    run_next("reassign apply move.json")

    assert "brokers           4\n" in run_next("rm -r data-2")
    assert list((shell.directory / "data-2").glob("orders-*"))
    shell.run(LOSE_LOGS)
    shell.await_partitions("payments", "leader", [None, None])
    run_next("--election-type unclean")
    shell.await_partitions("payments", "leader", [1, None])
    run_next("rm data-2/odradek-missing-logs")
    shell.run(AWAIT_REPLICAS)
    shell.await_partitions("payments", "end_offset", [1, 0])

    used = shell.make_new_environment()
    with check_clients(shell.bootstrap_servers):
        run_next("for id in 1 2 3 4", before=NEW_PATH)
        run_next("partition elect")
    starts = [line for line in used.read_text().splitlines() if line.startswith("start ")]
    assert starts == [f"start broker-{number}.properties" for number in (1, 2, 3, 4)]

    assert "orders" in shell.run(REMAINING)
    run_next("topic list --internal")
    assert {"orders", "__consumer_offsets"} <= {
        row["topic"] for row in json.loads((shell.directory / "removal.json").read_text())["partitions"]
    }
    assert run_next(REMAINING) == ""
    assert "brokers           3\n" in run_next("kill -TERM $(cat broker-4.pid)")
    run_next("for id in 3 2 1")
    assert list(blocks) == []


@contextlib.contextmanager
def check_clients(bootstrap_servers: str) -> Iterator[None]:
    """Write to the topic orders and read it meanwhile: no client gets an error, and each record is read once."""
    load = NumberedLoad(bootstrap_servers, "orders", PARTITIONS, delivery_timeout_ms=30_000)
    readers: list[StrictReader] = [
        ConfluentReader("billing", bootstrap_servers, "orders"),
        KafkaPythonReader("shipping", bootstrap_servers, "orders"),
    ]
    with running(readers):
        with load:
            load.wait_for_more()
            wait_for_more({reader: [""] for reader in readers})
            yield
            load.wait_for_more()
            wait_for_more({reader: [""] for reader in readers})
        written = read_whole(bootstrap_servers, "orders", PARTITIONS, "read_committed")
        for reader in readers:
            reader.wait_until_read(written)
    assert not load.failures
    assert [complaint for reader in readers for complaint in reader.check(written)] == []
    check_numbers(load, read_numbers(bootstrap_servers, "orders", PARTITIONS))


def test_the_listeners_of_the_page(shell):
    """Three brokers replicate over TLS; a client without a certificate cannot use the listener between brokers."""
    security, client, status = LISTENERS
    for block in (SETUP, security, START, client, status):
        shell.run(block)
    options = "--command-config client.properties --bootstrap-server"
    shell.run(f"odradek topic create secret --partitions 3 {options} localhost:9091")
    # The topic reaches the metadata of the other brokers some time later.
    for port in (9092, 9093):
        shell.run(f"until odradek partition list secret {options} localhost:{port}; do sleep 0.2; done")
    shell.run(f"echo kept | odradek record produce secret {options} localhost:9092")
    assert shell.run(f"odradek record consume secret {options} localhost:9093") == "kept\n"
    shell.run(f"until odradek cluster status {options} localhost:9091; do sleep 0.2; done")

    shell.run("grep -v sasl client.properties | sed s/SASL_SSL/SSL/ > internal.properties")
    internal = "odradek cluster status --command-config internal.properties --bootstrap-server 127.0.0.1:9081"
    shell.run(f"{internal} || test $? = 3")
    certificate = "ssl.keystore.type=PEM\nssl.keystore.location=certificates/client.pem\n"
    with open(shell.directory / "internal.properties", "a") as properties:
        properties.write(certificate)
    assert "brokers           3\n" in shell.run(internal)


# With job control a background job is a process group, to which Ctrl-C sends SIGINT.
RUN_IN_TERMINAL = """set -m
{command} > {name}.log 2>&1 &
echo $! > {name}.pid
until grep -q '{text}' {name}.log; do kill -0 $(cat {name}.pid); sleep 0.1; done
"""
INTERRUPT = """kill -INT -- -$(cat {name}.pid)
while kill -0 -- -$(cat {name}.pid) 2> /dev/null; do sleep 0.1; done
tail -n 1 {name}.log
"""
TERMINALS = ("first", "second", "third")


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[PageShell]:
    first_port = processes.lasting_series(len(PIDS))
    replaced = {"odradek cluster start": f"odradek cluster start --port {first_port}", ":9092": f":{first_port}"}
    yield PageShell(tmp_path, replaced, log_pattern="*.log")
    for name in TERMINALS:
        if (file := tmp_path / f"{name}.pid").exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)


def test_the_trial_of_the_page(trial):
    """Three brokers start, then four; one of them is killed, and started again in another terminal."""
    start, growth, again = (block.strip() for block in TRIAL)
    address = "--bootstrap-server 127.0.0.1:9092"
    await_replicas = f"until odradek cluster status {address} > status; do sleep 0.2; done; cat status"
    first, second, third = TERMINALS

    def run_in_terminal(name: str, command: str, text: str) -> None:
        trial.run(RUN_IN_TERMINAL.format(command=command, name=name, text=text))

    run_in_terminal(first, start, "started bootstrap_servers=")
    assert "brokers           3\n" in trial.run(f"odradek cluster status {address}")
    assert "3 replicas" in trial.run(f"odradek topic create kept {address}")
    assert trial.run(INTERRUPT.format(name=first)) == "cluster  | stopped\n"

    run_in_terminal(second, growth, "started bootstrap_servers=")
    assert "brokers           4\n" in trial.run(await_replicas)
    assert "kept" in trial.run(f"odradek topic list {address}")
    trial.run(f"kill -KILL $(pgrep -f -P $(cat {second}.pid) data-cluster/broker-2/server.properties)")
    # Its id is in use until its session has expired.
    run_in_terminal(third, f"until {again}; do sleep 0.5; done", "odradek started")
    trial.run(f"until odradek cluster status {address} | grep '^brokers  *4$'; do sleep 0.2; done")
    trial.run(await_replicas)


def test_the_properties_of_kafka_in_a_mixed_cluster():
    """The mixed clusters of other tests have them."""
    assert KAFKA_PROPERTIES == {
        "inter.broker.protocol.version": "3.9",
        "zookeeper.metadata.migration.enable": "false",
    }


def test_the_fixture_of_the_page(tmp_path):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_page.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=limits.COMMANDS_S, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
