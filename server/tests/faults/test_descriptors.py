"""A broker process with few file descriptors refuses requests that need one; no data is lost, no disk goes offline."""

import os
import resource
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.server.tests.wire import LATEST, Wire, until
from odradek.testing import BrokerFailedError, OdradekBroker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")

LIMIT = 200


def limit(broker, most):
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (most, hard))


def open_files(broker):
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def creation(wire, name, partitions):
    topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    (answer,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
    return answer


def is_served(broker):
    """Return whether a new connection is answered."""
    with Wire(broker.port) as wire:
        wire.socket.settimeout(0.3)
        try:
            wire.metadata()
        except TimeoutError:
            return False
        return True


@pytest.fixture
def broker():
    with OdradekBroker({"log.segment.bytes": str(1 << 20)}) as started:
        limit(started, LIMIT)
        yield started
        assert started.is_running
        assert "offline" not in started.log_text()
        assert "please report it" not in started.log_text()
        assert started.stop() == 0


def test_partitions_that_cannot_be_opened_are_refused(broker):
    with Wire(broker.port) as wire:
        refused = creation(wire, "large", LIMIT)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "raise the limit of open files (ulimit -n)" in refused.error_message
        assert [topic.name for topic in wire.metadata().topics] == []
        assert creation(wire, "t", 100).error_code == 0
        growth = CreatePartitionsRequestCreatePartitionsTopic(name="t", count=190, assignments=None)
        (grown,) = wire.ask(CreatePartitionsRequest(topics=[growth], timeout_ms=10_000)).results
        assert grown.error_code == ErrorCode.POLICY_VIOLATION
        assert wire.produce("t", b"v", partition=99).error_code == 0


def test_idle_connections_leave_descriptors_to_the_broker(broker):
    with ExitStack() as idle, Wire(broker.port) as wire:
        wire.create_topic("t", 2)
        # Fewer than the broker accepts and the system queues; any more would wait in `connect`.
        for _ in range(LIMIT - 50):
            idle.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
        until(lambda: "file descriptors run short: new connections wait" in broker.log_text())
        reserve = LIMIT // 8
        assert LIMIT - 2 * reserve - 2 <= open_files(broker) <= LIMIT - 2 * reserve + 1
        assert not is_served(broker)
        for partition in (0, 1):
            assert wire.produce("t", b"v" * 1000, partition=partition).error_code == 0
        assert creation(wire, "more", 5).error_code == 0, "connections leave descriptors to the logs"
        assert wire.fetch("t").error_code == 0
        idle.close()
        until(lambda: is_served(broker))
    until(lambda: open_files(broker) < 60)


def test_a_batch_that_needs_a_new_segment_is_refused_until_there_is_a_descriptor(broker):
    with Wire(broker.port) as wire:
        wire.create_topic("t")
        value = os.urandom(700_000)
        assert wire.produce("t", value).error_code == 0
        assert wire.offset("t", LATEST) == 1, "this also imports the modules that the last ListOffsets needs"
        limit(broker, 10)
        for _ in range(3):
            assert wire.produce("t", value).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert wire.produce("t", b"small").error_code == 0, "a batch that needs no new segment is written"
        assert wire.offset("t", LATEST) == 2
        limit(broker, LIMIT)
        assert wire.produce("t", value).error_code == 0
        assert wire.offset("t", LATEST) == 3
        broker.restart()
    with Wire(broker.port) as wire:
        limit(broker, LIMIT)
        assert wire.offset("t", LATEST) == 3


def test_topics_can_be_deleted_when_no_file_can_be_opened(broker):
    with Wire(broker.port) as wire:
        wire.create_topic("t", 40)
        wire.metadata()
        before = open_files(broker)
        limit(broker, before + 1)
        state = DeleteTopicsRequestDeleteTopicState(name="t")
        (deleted,) = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=10_000)).responses
        limit(broker, LIMIT)
        assert deleted.error_code in (0, ErrorCode.UNKNOWN_SERVER_ERROR), "a module may not be loaded yet"
        if deleted.error_code:
            (deleted,) = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=10_000)).responses
        assert deleted.error_code == 0
        until(lambda: open_files(broker) < before - 30)


def started_with(soft, hard, directory):
    """Run `odradek start` under these limits to its end. Return the completed process."""
    overrides = [f"--override=log.dirs={directory}", "--override=listeners=PLAINTEXT://127.0.0.1:0"]
    command = ["bash", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "-", sys.executable, "-m", "odradek"]
    return subprocess.run([*command, "start", *overrides], capture_output=True, text=True, timeout=30, check=False)


def test_a_start_that_cannot_open_its_logs_fails_with_one_line():
    with OdradekBroker() as broker, Wire(broker.port) as wire:
        wire.create_topic("t", 150)
        broker.stop()
        failed = started_with(100, 120, broker.data_dir)
        assert failed.returncode == 1
        [line] = [line for line in failed.stdout.splitlines() if "cannot start" in line]
        assert "Too many open files" in line
        assert "the process may open 120 files" in line
        assert "Traceback" not in failed.stdout + failed.stderr
        assert "offline" not in failed.stdout
        broker.start()
        with Wire(broker.port) as again:
            assert again.produce("t", b"v", partition=149).error_code == 0


def test_a_start_raises_the_soft_limit():
    code = """
        import resource
        from odradek.log.storage import descriptors
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        assert (descriptors.limit(), descriptors.reserve()) == (100, 12)
        descriptors.raise_limit()
        assert descriptors.limit() == hard
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    with OdradekBroker() as broker:
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


def test_a_start_without_a_usable_log_directory_ends(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").mkdir()
    failed = started_with(1000, 1000, tmp_path / "data")
    assert failed.returncode == 1
    [line] = [line for line in failed.stdout.splitlines() if "cannot start" in line]
    assert "no log directory can be used" in line
    with pytest.raises(BrokerFailedError), OdradekBroker(directory=tmp_path):
        pass


