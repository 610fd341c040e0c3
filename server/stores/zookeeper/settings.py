"""Settings of the connection to ZooKeeper."""

from typing import NamedTuple

from odradek.server.config.broker import BrokerConfig
from odradek.server.config.zookeeper import parse_connect


class ZooKeeperSettings(NamedTuple):
    """Settings of the connection to ZooKeeper.

    hosts: `host:port` of the servers, separated by commas
    chroot: path below which all nodes are, such as `/kafka`; empty without one
    """

    hosts: str
    chroot: str
    session_timeout_ms: int
    connection_timeout_ms: int
    max_in_flight: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "ZooKeeperSettings":
        """Return the settings of a broker with `zookeeper.connect`."""
        assert config.zookeeper_connect is not None
        hosts, chroot = parse_connect(config.zookeeper_connect)
        session_timeout_ms = config.zookeeper_session_timeout_ms
        return cls(
            hosts,
            chroot,
            session_timeout_ms,
            config.zookeeper_connection_timeout_ms or session_timeout_ms,
            config.zookeeper_max_in_flight_requests,
        )

    @property
    def host_count(self) -> int:
        """The number of servers."""
        return self.hosts.count(",") + 1

    @property
    def connect(self) -> str:
        """The value of `zookeeper.connect`."""
        return self.hosts + self.chroot
