"""Settings of the connection to ZooKeeper."""

import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

from odradek.server.config.broker import BrokerConfig
from odradek.server.config.properties.zookeeper import parse_connect


class Credentials(NamedTuple):
    """User name and password for ZooKeeper."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.username})"


class ZooKeeperSettings(NamedTuple):
    """Settings of the connection to ZooKeeper.

    hosts: `host:port` of the servers, separated by commas
    chroot: path below which all nodes are, such as `/kafka`; empty without one
    tls_context: returns the context of a new connection; None without TLS
    credentials: None for connections without SASL
    has_acls: nodes that are created may be changed by this user only
    """

    hosts: str
    chroot: str
    session_timeout_ms: int
    connection_timeout_ms: int
    max_in_flight: int
    tls_context: Callable[[], ssl.SSLContext] | None = None
    credentials: Credentials | None = None
    has_acls: bool = False

    @classmethod
    def of(cls, config: BrokerConfig) -> "ZooKeeperSettings":
        """Return the settings of a broker with `zookeeper.connect`. Raises PropertyError."""
        assert config.zookeeper_connect is not None
        hosts, chroot = parse_connect(config.zookeeper_connect)
        credentials = config.zookeeper_credentials
        session_timeout_ms = config.zookeeper_session_timeout_ms
        return cls(
            hosts,
            chroot,
            session_timeout_ms,
            config.zookeeper_connection_timeout_ms or session_timeout_ms,
            config.zookeeper_max_in_flight_requests,
            _make_tls_context(config),
            None if credentials is None else Credentials(*credentials),
            config.zookeeper_set_acl,
        )

    @property
    def host_count(self) -> int:
        """The number of servers."""
        return self.hosts.count(",") + 1

    @property
    def connect(self) -> str:
        """The value of `zookeeper.connect`."""
        return self.hosts + self.chroot


def _make_tls_context(config: BrokerConfig) -> Callable[[], ssl.SSLContext] | None:
    settings = config.zookeeper_tls_settings
    if settings is None:
        return None
    # Imported here because most brokers connect to ZooKeeper without TLS.
    from odradek.server.security.tls.contexts import make_client_context
    from odradek.server.security.tls.reloaded_context import ReloadedContext

    return ReloadedContext(settings, make_client_context, time.monotonic)
