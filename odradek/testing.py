"""A real broker for tests: a separate process, a free port, a temporary directory.

    from odradek.testing import OdradekBroker

    with OdradekBroker({"num.partitions": "3"}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

With pytest, use the fixtures of `odradek.pytest_plugin`. This module imports nothing of the broker.
"""

import atexit
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from odradek.broker_log import BrokerLog
from odradek.managed_process import ManagedProcess
from odradek.ports import PortReservation

TEST_PROPERTIES: Mapping[str, str] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    # Kafka's defaults, 3 s and 50 partitions, would slow down each test with a consumer group.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
}

_SLOW_ITERATION = re.compile(r"reactor iteration was slow.* cpu_ms=(\d+) ")
_MOST_ITERATION_MS = "ODRADEK_MOST_ITERATION_MS"
_READ_BYTES = 65_536
_PORT_ZERO = re.compile(r":0(?=\s*(?:,|$))")

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
"""Long enough for a machine that runs other tests too: only a broker that hangs reaches one of these limits."""

# PR_SET_PDEATHSIG kills the broker when the thread that started it ends, so that no broker outlives a killed test
# process. The parent may have ended before prctl was called.
_LAUNCHER = """
import os, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != parent:
        os._exit(1)
from odradek.__main__ import main
sys.exit(main())
"""


class BrokerFailedError(RuntimeError):
    """Failure of the broker process; the message ends with its last log lines."""


class OdradekBroker(ManagedProcess):
    """A broker process, started on entering the context and stopped on leaving it.

    `properties` override TEST_PROPERTIES, by Kafka's names. `directory` holds the data and the log, with lines at or
    above `log_level`; by default a temporary directory is created, and removed at the end. Raises BrokerFailedError if
    the broker does not start within `start_timeout_s`.

    The environment variable ODRADEK_MOST_ITERATION_MS is for the tests of Odradek itself: leaving the context raises
    BrokerFailedError if the broker has logged a reactor iteration with more CPU time.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        log_level: str = "info",
        start_timeout_s: float = START_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._is_temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="odradek-") if directory is None else directory)
        self.data_dir = self.directory / "data"
        given = {"log.dirs": str(self.data_dir), **TEST_PROPERTIES, **(properties or {})}
        self.properties: dict[str, str] = {name: str(value) for name, value in given.items()}
        self.addresses: tuple[str, ...] = ()
        self._reservations: list[PortReservation] = []
        self._log_level = log_level
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: _Process | None = None
        self._last_log = ""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the first listener, for clients."""
        if not self.addresses:
            raise BrokerFailedError("the broker was never started")
        return self.addresses[0]

    @property
    def port(self) -> int:
        """Port of the first listener; the same after a restart."""
        return int(self.bootstrap_servers.rpartition(":")[2])

    @property
    def metrics_url(self) -> str:
        """`http://host:port` of the server of `metrics.listener`, with /metrics, /healthz and /readyz; else empty."""
        return "" if self._process is None else self._process.log.metrics_url

    @property
    def live_brokers(self) -> frozenset[int]:
        """Ids of the live brokers in the metadata of a member of a cluster; empty before it has any."""
        return frozenset() if self._process is None else self._process.log.live_brokers

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self._process is None:
            raise BrokerFailedError("the broker is not running")
        return self._process.popen.pid

    @property
    def is_running(self) -> bool:
        """True if the process is running."""
        return self._process is not None and self._process.popen.poll() is None

    def start(self) -> Self:
        """Start the broker; return when it accepts connections."""
        if self.is_running:
            return self
        self.directory.mkdir(parents=True, exist_ok=True)
        self._reserve_ports()
        log = BrokerLog(self._log_level)
        arguments = ["start", "--log-level", log.process_level]
        for name, value in self.properties.items():
            arguments += ["--override", f"{name}={value}"]
        self._process = _Process(arguments, log, self._log_path)
        _running[id(self)] = self
        self.addresses = self._await_start(self._process)
        return self

    def stop(self) -> int:
        """Stop the broker with SIGTERM, wait for its end, and return its exit code."""
        if self._process is None:
            return 0
        self._process.popen.terminate()
        try:
            return self._ended(self._process)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"did not stop within {self._stop_timeout_s} s of SIGTERM") from None

    def kill(self) -> None:
        """Kill the process with SIGKILL, as in a crash of the process. Acknowledged records are not lost."""
        if self._process is not None:
            self._process.popen.kill()
            self._ended(self._process)

    def restart(self, *, clean: bool = True) -> Self:
        """Stop (`clean`) or kill the broker, and start it with the same port and data directory."""
        if clean:
            self.stop()
        else:
            self.kill()
        return self.start()

    def close(self) -> None:
        """Stop the broker and remove its temporary directory."""
        try:
            self.stop()
        finally:
            for reservation in self._reservations:
                reservation.release()
            if self._is_temporary:
                self._last_log = self.log_text()
                shutil.rmtree(self.directory, ignore_errors=True)

    def _check_iterations(self, most_ms: int) -> None:
        slow = [line for line in self.log_text().splitlines() if _slow_iteration_ms(line) > most_ms]
        if slow:
            raise BrokerFailedError(f"the broker blocked all requests for more than {most_ms} ms:\n" + "\n".join(slow))

    def log_text(self) -> str:
        """Return the broker's log of all its starts: all lines that it has written before the call."""
        if (process := self._process) is not None:
            process.copy_output()
        try:
            return self._log_path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return self._last_log

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and (most_ms := os.environ.get(_MOST_ITERATION_MS)):
            self._check_iterations(int(most_ms))

    @property
    def _log_path(self) -> Path:
        return self.directory / "broker.log"

    def _await_start(self, process: "_Process") -> tuple[str, ...]:
        settled = process.settled.wait(self._start_timeout_s)
        if process.error is not None:
            self._process = None
            _running.pop(id(self), None)
            raise process.error
        if process.log.addresses:
            return process.log.addresses
        if not settled:
            self.kill()
            raise self._failure(f"did not start within {self._start_timeout_s} s")
        raise self._failure(f"did not start, exit code {self._ended(process)}")

    def _ended(self, process: "_Process") -> int:
        code = process.popen.wait(self._stop_timeout_s)
        process.thread.join(self._stop_timeout_s)
        self._process = None
        _running.pop(id(self), None)
        return code

    def _reserve_ports(self) -> None:
        """Replace port 0 of the listeners by reserved ports, so that a restart binds the same ports."""

        def reserve(_: re.Match[str]) -> str:
            self._reservations.append(PortReservation())
            return f":{self._reservations[-1].port}"

        self.properties["listeners"] = _PORT_ZERO.sub(reserve, self.properties["listeners"])

    def _failure(self, what: str) -> BrokerFailedError:
        tail = "\n".join(f"    {line}" for line in self.log_text().splitlines()[-30:])
        return BrokerFailedError(f"the broker {what}; its log ends:\n{tail or '    (nothing)'}")


def _slow_iteration_ms(line: str) -> int:
    """Return the CPU time in a line of the broker's watchdog; 0 for any other line."""
    match = _SLOW_ITERATION.search(line)
    return int(match[1]) if match else 0


class _Process:
    """A broker process and the thread that starts it and copies its output to a file until it ends.

    The process may have sent a response while the lines before it are still in the pipe: `copy_output` copies them.

    `settled` is set once the start line was read (`log.addresses`), the output ended, or the start failed (`error`).
    """

    def __init__(self, arguments: list[str], log: BrokerLog, log_path: Path) -> None:
        self.settled = threading.Event()
        self.log = log
        self.error: OSError | None = None
        self.popen: subprocess.Popen[bytes]
        self._command = [sys.executable, "-c", _LAUNCHER, str(os.getpid()), *arguments]
        self._log_path = log_path
        self._created = threading.Event()
        self._lock = threading.Lock()
        self._output = self._file = -1
        self._rest = b""
        self.thread = threading.Thread(target=self._run, name="odradek-broker", daemon=True)
        self.thread.start()
        self._created.wait()

    def _run(self) -> None:
        try:
            self.popen = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches the test alone, which then stops the broker
            )
        except OSError as error:
            self.error = error
            return
        finally:
            self._created.set()
            if self.error is not None:
                self.settled.set()
        assert self.popen.stdout is not None
        with (
            self.popen.stdout as output,
            self._log_path.open("ab", buffering=0) as file,
            selectors.DefaultSelector() as selector,
        ):
            os.set_blocking(output.fileno(), False)
            selector.register(output, selectors.EVENT_READ)
            with self._lock:
                self._output, self._file = output.fileno(), file.fileno()
            while self.copy_output():
                selector.select()
        self.settled.set()

    def copy_output(self) -> bool:
        """Copy what the process has written so far; return False if its output has ended. Any thread may call it."""
        with self._lock:
            if self._output < 0:
                return False
            try:
                while data := os.read(self._output, _READ_BYTES):
                    self._copy_lines(data)
            except BlockingIOError:
                return True
            if self._rest:
                self._copy_lines(b"\n")
            self._output = self._file = -1
            return False

    def _copy_lines(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self.log.selects(line + b"\n"):
                os.write(self._file, line + b"\n")
            if self.log.addresses:
                self.settled.set()


_running: dict[int, OdradekBroker] = {}
_owner_pid = os.getpid()


@atexit.register
def _kill_what_runs() -> None:
    if os.getpid() != _owner_pid:
        return  # a fork of the test process does not own its brokers
    for broker in list(_running.values()):
        broker.kill()
        if broker._is_temporary:
            shutil.rmtree(broker.directory, ignore_errors=True)
