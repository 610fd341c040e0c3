"""`odradek cluster start` and `odradek cluster status`, with real processes and a ZooKeeper."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble, find_port
from odradek.server.tests.wire import until

TIMEOUT_S = 60
ODRADEK = [sys.executable, "-m", "odradek"]
STARTED = re.compile(r"cluster  \| started bootstrap_servers=(\S+) zookeeper=(\S+) directory=(\S+)")

pytestmark = pytest.mark.timeout(300)


def run(*arguments, **environment):
    command = [*ODRADEK, *map(str, arguments)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)


def broker_pid(broker_id, directory):
    return find_process(f"{directory}/broker-{broker_id}/server.properties")


def find_process(file):
    """The id of the process that has the file in its command line."""
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as text:
                if file.encode() in text.read().split(b"\0"):
                    return int(name)
        except OSError:
            continue
    return None


class ClusterCommand:
    """A running `odradek cluster start` and its lines."""

    def __init__(self, directory, *arguments):
        self.directory = directory
        self.lines = []
        command = [*ODRADEK, "cluster", "start", "--directory", str(directory), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def find(self, pattern):
        return next((match for line in list(self.lines) if (match := re.search(pattern, line))), None)

    def wait_for(self, pattern):
        def found():
            assert self.process.poll() is None, self.text
            return self.find(pattern)

        try:
            return until(found, TIMEOUT_S, pattern)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    @property
    def text(self):
        return "".join(self.lines)

    @property
    def servers(self):
        return self.wait_for(STARTED)[1]

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        exit_code = self.process.wait(TIMEOUT_S)
        self._reader.join()
        return exit_code


def status(servers):
    done = run("cluster", "status", "--bootstrap-server", servers, "--json")
    assert not done.stderr
    return done.returncode, json.loads(done.stdout)


def create_topic(servers, name, partitions, replicas):
    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    admin.create_topics([NewTopic(name, partitions, replicas)])
    admin.close()


def test_a_cluster_is_started_grows_and_continues(tmp_path):
    directory = tmp_path / "cluster"
    with ClusterCommand(directory, "--brokers", "2", "--port", "0", "--override", "num.partitions=2") as cluster:
        servers = cluster.servers
        assert all(cluster.find(rf"^broker {number} \| .* odradek started address=") for number in (1, 2))
        create_topic(servers, "kept", -1, -1)
        exit_code, before = until(lambda: (found := status(servers))[1]["partitions"] == 2 and found)
        assert exit_code == 0 and before["healthy"]
        assert [broker["id"] for broker in before["brokers"]] == [1, 2]
        assert before["controller"] in (1, 2)
        second = run("cluster", "start", "--directory", directory)
        assert second.returncode == 2
        assert second.stderr == f"odradek: {directory} is in use by another odradek cluster start\n"
        assert cluster.stop() == 0, cluster.text
        # The last broker has nothing to move. It may try once, before it has noticed the end of the other one.
        assert not cluster.find(r"^broker 2 \| .* the controlled shutdown is not complete (attempt=[^1]|after)")
        assert cluster.lines[-1] == "cluster  | stopped\n"
        assert cluster.text.count("odradek stopped") == 2
    with ClusterCommand(directory, "--brokers", "3", "--port", "0") as cluster:
        assert cluster.servers.startswith(f"{servers},"), "the same ports"
        _, after = status(cluster.servers)
        assert (after["cluster_id"], after["topics"]) == (before["cluster_id"], 1)
        assert [broker["id"] for broker in after["brokers"]] == [1, 2, 3]
        assert cluster.stop(signal.SIGTERM) == 0


def test_a_killed_broker_is_reported_and_found_by_the_status(tmp_path):
    with ClusterCommand(tmp_path, "--port", "0") as cluster:
        servers = cluster.servers
        create_topic(servers, "topic", 3, 3)
        until(lambda: status(servers)[1]["partitions"] == 3)
        os.kill(broker_pid(2, tmp_path), signal.SIGKILL)
        file = tmp_path / "broker-2" / "server.properties"
        cluster.wait_for(
            rf"^cluster  \| broker 2 has ended \(killed by SIGKILL\); to start it again: odradek start {file}$"
        )
        exit_code, found = until(lambda: (found := status(servers))[1]["missing_brokers"] == [2] and found, TIMEOUT_S)
        until(lambda: len(status(servers)[1]["under_replicated"]) == 3, TIMEOUT_S)
        exit_code, found = status(servers)
        assert exit_code == 1 and not found["healthy"]
        assert [len(found[name]) for name in ("at_min_isr", "under_min_isr", "offline")] == [3, 0, 0]
        assert all(row["min.insync.replicas"] == 2 for row in found["under_replicated"])
        table = run("cluster", "status", "--bootstrap-server", servers)
        assert table.returncode == 1
        assert "brokers           2 (not live: 2)\n" in table.stdout
        assert re.search(
            r"^topic-0  +\d +[123],[123],[123] +[13],[13] +2 +under-replicated$", table.stdout, re.MULTILINE
        )
        # The children of a killed command end with it.
        pids = [broker_pid(1, tmp_path), broker_pid(3, tmp_path)]
        cluster.process.kill()
        cluster.process.wait()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert run("cluster", "status", "--bootstrap-server", servers).returncode == 3
    # Its ids are in use until the sessions have expired.
    with ClusterCommand(tmp_path) as cluster:
        assert cluster.servers == servers
        assert cluster.stop() == 0


def test_a_cluster_whose_zookeeper_has_ended(tmp_path):
    with ClusterCommand(tmp_path, "--brokers", "2", "--port", "0", "--log-level", "warning") as cluster:
        create_topic(cluster.servers, "topic", 2, 2)
        assert not cluster.find(r"^broker \d \| \S+ INFO ")
        until(lambda: status(cluster.servers)[1]["partitions"] == 2, TIMEOUT_S)
        os.kill(find_process(f"{tmp_path}/zookeeper/zoo.cfg"), signal.SIGKILL)
        cluster.wait_for(r"^cluster  \| ZooKeeper has ended; ")
        assert status(cluster.servers)[1]["partitions"] == 2
        assert cluster.stop() == 0


def test_an_existing_zookeeper_is_used_and_left_alone(tmp_path):
    with ZooKeeperEnsemble() as zookeeper:
        connect = f"{zookeeper.connect}/one"
        with ClusterCommand(tmp_path / "c", "--brokers", "1", "--port", "0", "--zookeeper", connect) as cluster:
            assert cluster.wait_for(STARTED)[2] == connect
            assert cluster.stop() == 0
        assert zookeeper.servers[0].is_serving()


def test_a_broker_that_cannot_start_stops_the_others(tmp_path):
    with ClusterCommand(tmp_path, "--brokers", "2", "--port", "0") as cluster:
        cluster.wait_for(STARTED)
        cluster.stop()
    first, second = (tmp_path / f"broker-{number}" / "server.properties" for number in (1, 2))
    [port] = re.findall(r"listeners=PLAINTEXT://127.0.0.1:(\d+)", first.read_text())
    second.write_text(re.sub(r"(listeners=PLAINTEXT://127.0.0.1:)\d+", rf"\g<1>{port}", second.read_text()))
    with ClusterCommand(tmp_path) as cluster:
        assert cluster.process.wait(TIMEOUT_S) == 1
        cluster._reader.join()
        assert cluster.find(
            r"^broker [12] \| .* cannot start: cannot listen on 127.0.0.1:\d+ .*: Address already in use;"
        )
        assert cluster.find(r"^cluster  \| broker [12] cannot start \(exit code 1\); stopping$")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--brokers", "0"],
            "invalid value for '--brokers': ",
        ),
        (["--port", "x"], "invalid value for '--port': "),
        (["--override", "broker.id=5"], "broker.id differs between brokers; set it in {}/broker-N/server.properties"),
        (["--override", "num.partitions=x"], "Invalid value x for configuration num.partitions: expected a 32-bit"),
        (["--zookeeper", "host:port"], "Invalid value host:port for configuration zookeeper.connect"),
    ],
)
def test_invalid_input_of_start(tmp_path, arguments, message):
    done = run("cluster", "start", "--directory", tmp_path, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"odradek: {message.format(tmp_path)}"), done.stderr


def test_a_directory_that_contradicts_the_command_line(tmp_path):
    invalid = ["--override", "num.partitions=x"]
    run("cluster", "start", "--directory", tmp_path, "--brokers", "3", "--port", "7000", *invalid)
    for arguments, message in (
        (["--brokers", "2"], f"{tmp_path} has 3 brokers; --brokers cannot be less, or use another --directory"),
        (["--port", "7001"], f"{tmp_path}/broker-1/server.properties has port 7000; omit --port, or use another"),
        (["--zookeeper", "a:1"], f"{tmp_path}/broker-1/server.properties has zookeeper.connect=127.0.0.1:"),
    ):
        done = run("cluster", "start", "--directory", tmp_path, *arguments, *invalid)
        assert done.returncode == 2 and done.stderr.startswith(f"odradek: {message}"), done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("broker.id=1", "a=\\u12", "{file}: malformed \\u escape in the value or the name of a"),
        ("zookeeper.connect=127.0.0.1:", "zookeeper.connect=elsewhere:",
         "{file} has zookeeper.connect=elsewhere:{port}, but the cluster has its own ZooKeeper at 127.0.0.1; correct "
         "zookeeper.connect, or remove {directory}/zookeeper to use another one"),
        ("zookeeper.connect", "other", "{file} has no zookeeper.connect, but the cluster has its own ZooKeeper"),
    ],
)  # fmt: skip
def test_a_file_that_was_edited_wrongly(tmp_path, old, new, message):
    run("cluster", "start", "--directory", tmp_path, "--brokers", "1", "--override", "num.partitions=x")
    file = tmp_path / "broker-1" / "server.properties"
    text = file.read_text()
    [port] = re.findall(r"zookeeper.connect=127.0.0.1:(\d+)", text)
    file.write_text(text.replace(old, new))
    done = run("cluster", "start", "--directory", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"odradek: {message.format(file=file, port=port, directory=tmp_path)}"), done.stderr


def test_a_zookeeper_that_does_not_respond(tmp_path):
    port = find_port()
    options = ("--zookeeper", f"127.0.0.1:{port}", "--override", "zookeeper.connection.timeout.ms=1000")
    with ClusterCommand(tmp_path / "c", "--brokers", "1", "--port", "0", *options) as cluster:
        assert cluster.process.wait(TIMEOUT_S) == 1
        cluster._reader.join()
        assert cluster.find(
            r"^broker 1 \| .* cannot start: cannot connect to ZooKeeper within 1000 ms "
            rf".zookeeper.connect=127.0.0.1:{port}.: Connection refused; start ZooKeeper, or correct zookeeper.connect$"
        )
        assert cluster.find(r"^cluster  \| broker 1 cannot start \(exit code 1\); stopping$")


def test_java_is_required_only_for_an_own_zookeeper(tmp_path):
    done = run("cluster", "start", "--directory", tmp_path / "c", PATH="/nowhere", JAVA_HOME="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "odradek: there is no java in PATH; install Java 17 or later; or give the address of a ZooKeeper with "
        "--zookeeper host:port\n"
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("servers", "exit_code", "message"),
    [
        ("nowhere", 2, "--bootstrap-server nowhere: nowhere is not host:port"),
        ("a:1,b:x", 2, "--bootstrap-server a:1,b:x: b:x is not host:port"),
        (",", 2, "--bootstrap-server ,: no host:port"),
        (
            "127.0.0.1:{port}",
            3,
            "127.0.0.1:{port} does not answer: connection: Connection refused (is the broker running, "
            "and is the port right?)",
        ),
        ("a..b:1", 2, "--bootstrap-server a..b:1: a..b:1 is not host:port"),
    ],
)
def test_invalid_input_of_status(servers, exit_code, message):
    port = find_port()
    done = run("cluster", "status", "--bootstrap-server", servers.format(port=port))
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr == f"odradek: {message.format(port=port)}\n"
