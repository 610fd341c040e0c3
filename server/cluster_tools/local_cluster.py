"""Brokers and a ZooKeeper server as processes of one command, with all of their log lines on standard output.

The main thread handles one event after the other: a broker has started or ended, or a signal requests the stop. A
thread for each broker copies its log lines.
"""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, NamedTuple

from odradek.broker_log import ID_IN_USE, BrokerLog
from odradek.server.cluster_tools.child_process import start_process
from odradek.server.cluster_tools.local_directory import SESSION_TIMEOUT_MS, LocalBroker, LocalDirectory
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperServer, ZooKeeperServerError
from odradek.server.event_log.json_lines import JsonFormatter

EXIT_FAILED: Final = 1
STOP_TIMEOUT_S: Final = 120.0
_ID_IN_USE: Final = ID_IN_USE.encode()
_ID_IN_USE_S: Final = 4 * SESSION_TIMEOUT_MS / 1000
"""Time in which the session of a killed broker expires; ZooKeeper counts it anew from its own start."""
_RETRY_S: Final = 1.0
_CHECK_S: Final = 1.0
_METADATA_S: Final = 30.0
"""Time after the start of the last broker for which the others are awaited in the metadata of each."""
_METADATA_CHECK_S: Final = 0.02
_TICK_MS: Final = 1000


class _Started(NamedTuple):
    broker: "BrokerProcess"


class _Ended(NamedTuple):
    broker: "BrokerProcess"
    exit_code: int


class _RetryDue(NamedTuple):
    broker: "BrokerProcess"


class _StopRequested(NamedTuple):
    pass


_Event = _Started | _Ended | _RetryDue | _StopRequested


class BrokerProcess:
    """A broker process and the thread that copies its log lines.

    id: number in the name of its directory
    broker_id: id in the cluster
    address: `host:port` of the first listener; empty before the broker has started
    live_brokers: ids of the live brokers in the metadata of the broker; empty before it has any
    has_id_in_use: set if the broker was refused because its earlier session has not expired
    """

    def __init__(
        self,
        broker: LocalBroker,
        overrides: Sequence[str],
        log_level: str,
        write: Callable[[str, bytes], None],
    ) -> None:
        self.id = broker.id
        self.broker_id = broker.broker_id
        self.file = broker.file
        self.address = ""
        self.has_id_in_use = False
        self._overrides = [f"--override={override}" for override in overrides]
        self._log_level = log_level
        self._log = BrokerLog(log_level)
        self._write = write
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The prefix of log lines."""
        return f"broker {self.id}"

    @property
    def is_running(self) -> bool:
        """True if the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def live_brokers(self) -> frozenset[int]:
        return self._log.live_brokers

    def start(self, events: "SimpleQueue[_Event]") -> None:
        """Start the process; its start and its end are put into `events`. Raises OSError."""
        self.address = ""
        self.has_id_in_use = False
        log = self._log = BrokerLog(self._log_level)
        # The single-file executable runs Python without the packages of the system.
        python = [sys.executable, "-S"] if sys.flags.no_site else [sys.executable]
        command = [*python, "-m", "odradek", "start", str(self.file), "--log-level", log.process_level]
        process = self._process = start_process([*command, *self._overrides], subprocess.PIPE, Path.cwd())
        threading.Thread(target=self._copy_lines, args=(process, log, events), name=self.name, daemon=True).start()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def _copy_lines(self, process: "subprocess.Popen[bytes]", log: BrokerLog, events: "SimpleQueue[_Event]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if log.selects(line):
                    self._write(self.name, line)
                if not self.address:
                    self._look_for_start(line, log, events)
        events.put(_Ended(self, process.wait()))

    def _look_for_start(self, line: bytes, log: BrokerLog, events: "SimpleQueue[_Event]") -> None:
        if log.addresses:
            self.address = log.addresses[0]
            events.put(_Started(self))
        elif _ID_IN_USE in line:
            self.has_id_in_use = True


class LocalCluster:
    """The processes of one cluster. `run` starts them and returns an exit code when all have ended."""

    def __init__(
        self,
        directory: LocalDirectory,
        brokers: Sequence[LocalBroker],
        overrides: Sequence[str],
        log_level: str,
        log_format: str,
    ) -> None:
        self._directory = directory
        self._connect = brokers[0].zookeeper_connect
        self._brokers = [BrokerProcess(broker, overrides, log_level, self._write_line) for broker in brokers]
        self._zookeeper: ZooKeeperServer | None = None
        if (port := directory.own_zookeeper_port(brokers[0])) is not None:
            self._zookeeper = ZooKeeperServer(directory.zookeeper_path, port=port, tick_ms=_TICK_MS)
        self._has_json = log_format == "json"
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._output_lock = threading.Lock()

    def run(self) -> int:
        """Start all processes, and stop them on SIGINT, SIGTERM or SIGHUP. Raises ZooKeeperServerError, OSError."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start_zookeeper()
            try:
                exit_code = self._run_brokers()
            finally:
                self._stop_brokers()
        finally:
            if self._zookeeper is not None:
                self._zookeeper.stop()
        self._report("stopped")
        return exit_code

    def _run_brokers(self) -> int:
        """Start all brokers; return an exit code when the command has to end."""
        for broker in self._brokers:
            broker.start(self._events)
        exit_code = self._await_start()
        return self._serve() if exit_code is None else exit_code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._events.put(_StopRequested())

    def _start_zookeeper(self) -> None:
        if self._zookeeper is None:
            return
        if self._zookeeper.is_serving():
            raise ZooKeeperServerError(
                f"another ZooKeeper uses {self._zookeeper.connect}, the address of this cluster's; stop it"
            )
        self._report(f"starting ZooKeeper at {self._zookeeper.connect}, log in {self._zookeeper.log_file}")
        self._zookeeper.start()

    def _await_start(self) -> int | None:
        """Return None when all brokers have started, or the exit code if one cannot start or a signal arrives."""
        deadline = time.monotonic() + _ID_IN_USE_S
        waiting = set(self._brokers)
        metadata_deadline = 0.0
        while waiting or not self._has_all_metadata(metadata_deadline):
            try:
                event = self._events.get(timeout=None if waiting else _METADATA_CHECK_S)
            except Empty:
                continue
            if isinstance(event, _StopRequested):
                return 0
            if isinstance(event, _Started):
                waiting.discard(event.broker)
                metadata_deadline = time.monotonic() + _METADATA_S
                continue
            broker = event.broker
            if isinstance(event, _RetryDue):
                broker.start(self._events)
                continue
            if not broker.has_id_in_use or time.monotonic() > deadline:
                failure = "has ended" if broker.address else "cannot start"
                self._report(f"{broker.name} {failure} ({_describe_end(event.exit_code)}); stopping")
                return event.exit_code if event.exit_code > 0 else EXIT_FAILED
            self._report(f"{broker.name} starts again, until its earlier session has expired")
            waiting.add(broker)
            retry = threading.Timer(_RETRY_S, self._events.put, [_RetryDue(broker)])
            retry.daemon = True
            retry.start()
        servers = ",".join(broker.address for broker in self._brokers)
        self._report(f"started bootstrap_servers={servers} zookeeper={self._connect} directory={self._directory.path}")
        return None

    def _has_all_metadata(self, deadline: float) -> bool:
        """Return whether each broker has all of them in its metadata, so that replicas can be assigned.

        An existing ZooKeeper may have further brokers. After `deadline` return True, and report the brokers that
        have not.
        """
        ids = {broker.broker_id for broker in self._brokers}
        missing = [broker for broker in self._brokers if not ids <= broker.live_brokers]
        if not missing or time.monotonic() < deadline:
            return not missing
        for broker in missing:
            self._report(
                f"{broker.name} has only {len(ids & broker.live_brokers)} of {len(ids)} brokers in its metadata; "
                "see the warnings and errors of the brokers"
            )
        return True

    def _serve(self) -> int:
        """Report processes that end, until a signal arrives or no broker runs."""
        running = set(self._brokers)
        while running:
            try:
                event = self._events.get(timeout=_CHECK_S)
            except Empty:
                self._check_zookeeper()
                continue
            if isinstance(event, _StopRequested):
                return 0
            if isinstance(event, _Ended):
                broker = event.broker
                running.discard(broker)
                self._report(
                    f"{broker.name} has ended ({_describe_end(event.exit_code)}); to start it again: "
                    f"odradek start {broker.file}"
                )
        return EXIT_FAILED

    def _check_zookeeper(self) -> None:
        zookeeper = self._zookeeper
        if zookeeper is not None and not zookeeper.is_running:
            self._zookeeper = None
            self._report(
                f"ZooKeeper has ended; the brokers serve clients, but no leader and no topic can change until this "
                f"command is started again; see {zookeeper.log_file}"
            )

    def _stop_brokers(self) -> None:
        """Stop one broker after the other, so that each can hand over its leaderships. A second signal kills all."""
        if self._directory.has_zookeeper and (self._zookeeper is None or not self._zookeeper.is_running):
            # Without ZooKeeper no leadership can be handed over.
            for broker in self._brokers:
                broker.send_signal(signal.SIGTERM)
        for broker in self._brokers:
            if broker.is_running:
                broker.send_signal(signal.SIGTERM)
                self._await_end(broker)

    def _await_end(self, broker: BrokerProcess) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                self._report(f"{broker.name} did not stop within {STOP_TIMEOUT_S:.0f} s and is killed")
                broker.send_signal(signal.SIGKILL)
                deadline = time.monotonic() + STOP_TIMEOUT_S
                continue
            if isinstance(event, _StopRequested):
                self._report("killing all brokers")
                for one in self._brokers:
                    one.send_signal(signal.SIGKILL)
            elif isinstance(event, _Ended) and event.broker is broker:
                return

    def _report(self, text: str) -> None:
        line = text
        if self._has_json:
            line = JsonFormatter().format(logging.makeLogRecord({"name": "cluster", "levelname": "INFO", "msg": text}))
        self._write_line("cluster", f"{line}\n".encode())

    def _write_line(self, name: str, line: bytes) -> None:
        with self._output_lock:
            try:
                sys.stdout.buffer.write(name_process(line, name))
                sys.stdout.buffer.flush()
            except OSError:
                # The reader of the output or the terminal is gone; the brokers are not.
                return


def name_process(line: bytes, name: str) -> bytes:
    """Add the name of its process to a log line: as a field of a JSON object, or before text."""
    if line.startswith(b'{"') and line.endswith(b"}\n"):
        return line[:-2] + f', "process": "{name}"}}\n'.encode()
    return f"{name:<8} | ".encode() + line


def _describe_end(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
