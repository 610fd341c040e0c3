"""The directory of a cluster on this machine: for each broker a server.properties and its data, and ZooKeeper's data.

    lock            held while `odradek cluster start` runs
    zookeeper/      data of the ZooKeeper server, unless the brokers use another one
    broker-1/       server.properties and data/ of broker 1

The files of brokers are written once, so that a later start continues with the same ids, ports and data. They can be
edited, and a broker can be started alone with `odradek start DIRECTORY/broker-1/server.properties`.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from odradek.server.cluster_tools.zookeeper_server import find_ports
from odradek.server.config.properties.zookeeper import parse_connect
from odradek.server.config.properties_file import read_properties

DEFAULT_PORT: Final = 9092
DEFAULT_SIZE: Final = 3
SESSION_TIMEOUT_MS: Final = 6_000
_FILE: Final = "server.properties"
_HOST: Final = "127.0.0.1"


class DirectoryError(ValueError):
    """The directory and the command line contradict each other. The message is one line."""


class LocalBroker(NamedTuple):
    """A broker's number in the name of its directory, its server.properties, and the properties in it."""

    id: int
    file: Path
    properties: Mapping[str, str]

    @property
    def broker_id(self) -> int:
        """The id in the cluster, which differs from `id` if the file was edited."""
        value = self.properties.get("node.id", self.properties.get("broker.id", ""))
        return int(value) if value.isdigit() else self.id

    @property
    def zookeeper_connect(self) -> str:
        """The value of zookeeper.connect."""
        return self.properties.get("zookeeper.connect", "")

    @property
    def port(self) -> int:
        """The port of the first listener; 0 if the file does not have one."""
        port = self.properties.get("listeners", "").split(",")[0].rpartition(":")[2]
        return int(port) if port.isdigit() else 0


class LocalDirectory:
    """The directory of one cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = -1

    @property
    def zookeeper_path(self) -> Path:
        """The directory of the ZooKeeper server."""
        return self.path / "zookeeper"

    @property
    def has_zookeeper(self) -> bool:
        """True if the cluster has a ZooKeeper server of its own."""
        return self.zookeeper_path.is_dir()

    def lock(self) -> None:
        """Create the directory and lock it until this process ends. Raises DirectoryError, OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryError(f"{self.path} is in use by another odradek cluster start") from None

    def read_brokers(self) -> list[LocalBroker]:
        """Read the files of all brokers, by id. Raises DirectoryError, OSError."""
        found = []
        for file in self.path.glob(f"broker-*/{_FILE}"):
            number = file.parent.name.removeprefix("broker-")
            if not number.isdigit():
                continue
            try:
                found.append(LocalBroker(int(number), file, read_properties(file.read_bytes())))
            except ValueError as error:
                raise DirectoryError(f"{file}: {error}") from None
        return sorted(found)

    def set_up(self, size: int | None, port: int | None, zookeeper_connect: str | None) -> list[LocalBroker]:
        """Return `size` brokers, or as many as there are, or DEFAULT_SIZE; write the files of new ones.

        Brokers have consecutive ports from `port` on, with 0 any unused ports. Raises DirectoryError, OSError.
        """
        brokers = self.read_brokers()
        count = size or len(brokers) or DEFAULT_SIZE
        if count < len(brokers):
            raise DirectoryError(
                f"{self.path} has {len(brokers)} brokers; --brokers cannot be less, or use another --directory"
            )
        if brokers:
            self._check(brokers[0], port, zookeeper_connect)
            zookeeper_connect = brokers[0].zookeeper_connect
        elif zookeeper_connect is None:
            zookeeper_connect = f"{_HOST}:{find_ports(1)[0]}"
            self.zookeeper_path.mkdir(exist_ok=True)
        new_ids = [number for number in range(1, count + 1) if number not in {broker.id for broker in brokers}]
        new_ids = new_ids[: count - len(brokers)]
        if port == 0:
            ports = find_ports(len(new_ids))
        else:
            first = port or (brokers[0].port - brokers[0].id + 1 if brokers else DEFAULT_PORT)
            ports = [first + number - 1 for number in new_ids]
        for number, broker_port in zip(new_ids, ports, strict=True):
            self._write(number, broker_port, count, zookeeper_connect)
        return self.read_brokers()

    def own_zookeeper_port(self, broker: LocalBroker) -> int | None:
        """Return the port of the cluster's own ZooKeeper server; None if it has none. Raises DirectoryError."""
        if not self.has_zookeeper:
            return None
        connect = broker.zookeeper_connect
        host, _, port = parse_connect(connect)[0].rpartition(":") if connect else ("", "", "")
        if host not in (_HOST, "localhost"):
            raise DirectoryError(
                f"{broker.file} has {f'zookeeper.connect={connect}' if connect else 'no zookeeper.connect'}, but the "
                f"cluster has its own ZooKeeper at {_HOST}; correct zookeeper.connect, or remove {self.zookeeper_path} "
                "to use another one"
            )
        return int(port)

    def _check(self, broker: LocalBroker, port: int | None, zookeeper_connect: str | None) -> None:
        if zookeeper_connect not in (None, broker.zookeeper_connect):
            raise DirectoryError(
                f"{broker.file} has zookeeper.connect={broker.zookeeper_connect}; omit --zookeeper, or use another "
                "--directory"
            )
        if port and port + broker.id - 1 != broker.port:
            raise DirectoryError(f"{broker.file} has port {broker.port}; omit --port, or use another --directory")

    def _write(self, number: int, port: int, size: int, zookeeper_connect: str) -> None:
        properties = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://{_HOST}:{port}",
            "log.dirs": str(self.path / f"broker-{number}" / "data"),
            "zookeeper.connect": zookeeper_connect,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            **replication_properties(size),
        }
        lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in properties.items()]
        file = self.path / f"broker-{number}" / _FILE
        file.parent.mkdir(exist_ok=True)
        written = file.with_suffix(".new")
        written.write_text("# Written by odradek cluster start.\n" + "".join(lines), "utf-8")
        os.replace(written, file)


def replication_properties(size: int) -> dict[str, str]:
    """Return replication factors for `size` brokers: three replicas if possible, of which one may be lost."""
    replicas = str(min(size, 3))
    min_isr = str(min(2, max(1, size - 1)))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_isr,
    }
