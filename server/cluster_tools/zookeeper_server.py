"""ZooKeeper servers on this machine, single or as an ensemble, from the jars in the pyspark wheel.

    with ZooKeeperEnsemble() as ensemble:
        ...  # clients of ensemble.connect

They need Java and, unless `class_path` is given, pyspark. On Linux they end with the process that started them.
"""

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from odradek.managed_process import ManagedProcess
from odradek.ports import PortReservation
from odradek.server.cluster_tools.child_process import start_process

START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02

_JARS: Final = (
    "zookeeper-[0-9]", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java", "netty-common", "netty-buffer",
    "netty-handler-[0-9]", "netty-transport-[0-9]", "netty-transport-classes-epoll",
    "netty-transport-native-unix-common", "netty-resolver-[0-9]", "netty-codec-[0-9]", "log4j-api", "log4j-core",
    "log4j-slf4j2-impl",
)  # fmt: skip
"""The jars of pyspark that a server needs: snappy for snapshots, netty for connection options, log4j for the log."""

_JVM: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dlog4j2.level=INFO")


class ZooKeeperServerError(RuntimeError):
    """A server cannot be started; the message has the remedy or the end of the server's log."""


def find_class_path() -> str:
    """Return the class path of a ZooKeeper server: jars in the pyspark wheel. Raises ZooKeeperServerError."""
    spec = importlib.util.find_spec("pyspark")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        jars = [jar for name in _JARS for jar in sorted(Path(root, "jars").glob(f"{name}*.jar"))]
        if jars:
            return os.pathsep.join(map(str, jars))
    raise ZooKeeperServerError("ZooKeeper's jars are not available; install them with: pip install 'odradek[spark]'")


def find_java() -> str:
    """Return the path of Java. Raises ZooKeeperServerError."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        raise ZooKeeperServerError(f"there is no java in {'JAVA_HOME' if home else 'PATH'}; install Java 17 or later")
    return found


class ZooKeeperServer:
    """One server process. `directory` has its data and its log.

    tick_ms: ZooKeeper's tickTime; session timeouts are between 2 and 20 ticks
    members: lines `server.N=...` of the ensemble; none for a single server
    settings: further lines of the configuration
    jvm_options: further options of Java
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        tick_ms: int = 500,
        number: int = 1,
        members: Sequence[str] = (),
        settings: Sequence[str] = (),
        jvm_options: Sequence[str] = (),
        class_path: str | None = None,
    ) -> None:
        self.directory = directory
        if port is None:
            # It ends with this object.
            self._reservation = PortReservation(find_port())
            port = self._reservation.port
        self.port = port
        self.log_file = directory / "zookeeper.log"
        self._tick_ms = tick_ms
        self._number = number
        self._members = tuple(members)
        self._settings = tuple(settings)
        self._jvm_options = tuple(jvm_options)
        self._class_path = class_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connect(self) -> str:
        """The address for `zookeeper.connect`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """True if the process has been started and has not ended, even if it is paused."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process and wait until it serves clients. Raises ZooKeeperServerError."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start the process without waiting for it. Raises ZooKeeperServerError."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self._number}\n")
        config = self.directory / "zoo.cfg"
        config.write_text("\n".join((
            f"tickTime={self._tick_ms}",
            "initLimit=20",
            "syncLimit=10",
            f"dataDir={data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *self._members,
            *self._settings,
            "",
        )))  # fmt: skip
        command = [find_java(), *_JVM, *self._jvm_options, "-cp", self._class_path or find_class_path()]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        with open(self.log_file, "ab") as log:
            self._process = start_process(command, log, self.directory)

    def wait_until_ready(self) -> None:
        """Wait until the server serves clients. Raises ZooKeeperServerError."""
        process = self._running()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_serving():
            if process.poll() is not None:
                raise ZooKeeperServerError(f"ZooKeeper exited with {process.returncode}\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ZooKeeperServerError(f"ZooKeeper is not ready after {START_TIMEOUT_S} s\n{self._log_tail()}")
            time.sleep(_POLL_S)

    def is_serving(self) -> bool:
        """Return whether the server answers, and in an ensemble has joined the quorum."""
        return self._status().startswith(b"Zookeeper version")

    def is_leader(self) -> bool:
        """Return whether the server leads its ensemble."""
        return b"Mode: leader" in self._status()

    def _status(self) -> bytes:
        answer = b""
        # A server that refuses the connection, or does not answer within a second, is not serving.
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
        ):
            connection.sendall(b"srvr")
            while received := connection.recv(4096):
                answer += received
        return answer

    def stop(self) -> None:
        """Stop the process with SIGTERM, or with SIGKILL if that takes too long."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        # A server that does not stop in time is killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Suspend the process with SIGSTOP; its connections stay open without answers."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue a paused process."""
        self._running().send_signal(signal.SIGCONT)

    def restart(self) -> Self:
        """Stop the server and start it again with the same port and data."""
        self.stop()
        return self.start()

    def log_text(self) -> str:
        """Return the log of all starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-30:])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ZooKeeperServerError("the ZooKeeper server is not running")
        return self._process


class ZooKeeperEnsemble(ManagedProcess):
    """Servers that form an ensemble; with `size` 1 a single server. A temporary directory is removed at the end."""

    def __init__(
        self, size: int = 1, *, directory: Path | None = None, tick_ms: int = 500, class_path: str | None = None
    ) -> None:
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="zookeeper-")) if directory is None else directory
        self._reservations = [PortReservation(port) for port in find_ports(3 * size)]
        ports = iter([reservation.port for reservation in self._reservations])
        numbers = range(1, size + 1)
        members = [f"server.{number}=127.0.0.1:{next(ports)}:{next(ports)}" for number in numbers] if size > 1 else []
        self.servers = [
            ZooKeeperServer(
                self.directory / str(number),
                port=next(ports),
                tick_ms=tick_ms,
                number=number,
                members=members,
                class_path=class_path,
            )
            for number in numbers
        ]

    @property
    def connect(self) -> str:
        """The addresses for `zookeeper.connect`."""
        return ",".join(server.connect for server in self.servers)

    def start(self) -> Self:
        """Start all servers and wait until they serve clients. Raises ZooKeeperServerError."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_ready()
        return self

    def stop(self) -> None:
        """Stop all servers."""
        self._each(lambda server: server.stop())

    def close(self) -> None:
        """Kill all servers and remove a temporary directory."""
        self._each(lambda server: server.kill())
        for reservation in self._reservations:
            reservation.release()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _each(self, action: Callable[[ZooKeeperServer], None]) -> None:
        for server in self.servers:
            action(server)


def find_port() -> int:
    """Return an unused port that stays free while its server is down: no outgoing connection gets it.

    Another process that calls this function before the server listens may get the port, too, unless the caller
    reserves it (`odradek.ports`).
    """
    return find_ports(1)[0]


def find_ports(count: int) -> list[int]:
    """Return different ports like `find_port`."""
    lowest, highest = 32_768, 60_999
    # Only Linux has the file; elsewhere its defaults are used.
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest, highest = map(int, file.read().split())
    candidates = [*range(10_000, lowest), *range(highest + 1, 65_536)]
    random.shuffle(candidates)
    found: list[int] = []
    while len(found) < count:
        port = candidates.pop()
        # A port in use is skipped.
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
    return found
