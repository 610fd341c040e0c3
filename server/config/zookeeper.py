"""Properties of the connection to ZooKeeper, and of broker ids that are generated in it."""

from odradek.properties import PropertySet, boolean, integer, string

DEFAULT_PORT = 2181


class ZooKeeperProperties(PropertySet):
    """ZooKeeper: its servers, sessions, and generated broker ids."""

    zookeeper_connect = string(
        "zookeeper.connect",
        None,
        doc="Servers of ZooKeeper, as host:port,host:port/path; the path is optional. With it this broker is a member "
        "of a cluster; without it the metadata store is embedded.",
    )
    zookeeper_connection_timeout_ms = integer(
        "zookeeper.connection.timeout.ms",
        None,
        minimum=1,
        doc="Time for a connection to ZooKeeper to be established; by default zookeeper.session.timeout.ms.",
    )
    zookeeper_session_timeout_ms = integer(
        "zookeeper.session.timeout.ms",
        18_000,
        minimum=1,
        doc="Time without contact after which ZooKeeper ends this broker's session, within ZooKeeper's own limits.",
    )
    zookeeper_max_in_flight_requests = integer(
        "zookeeper.max.in.flight.requests",
        10,
        minimum=1,
        doc="Maximum number of requests in flight to ZooKeeper.",
    )
    zookeeper_set_acl = boolean(
        "zookeeper.set.acl",
        False,
        doc="Restrict access to the nodes in ZooKeeper. Requires authentication with ZooKeeper, which this version "
        "lacks, so it must be false.",
    )
    zookeeper_ssl_client_enable = boolean(
        "zookeeper.ssl.client.enable",
        False,
        doc="Connect to ZooKeeper with TLS, which this version lacks, so it must be false.",
    )
    broker_id_generation_enable = boolean(
        "broker.id.generation.enable",
        True,
        doc="Generate the id of a broker without broker.id in ZooKeeper, and keep it in meta.properties.",
    )
    reserved_broker_max_id = integer(
        "reserved.broker.max.id",
        1000,
        minimum=0,
        doc="Largest broker.id that can be configured with ZooKeeper; generated ids are larger.",
    )


def parse_connect(text: str) -> tuple[str, str]:
    """Split `zookeeper.connect` into `host:port,host:port` and chroot, empty without one. Raises ValueError."""
    hosts, _, chroot = text.strip().partition("/")
    parts = [_parse_host(host.strip()) for host in hosts.split(",")]
    path = chroot.rstrip("/")
    if path and any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"/{path} is not a path of ZooKeeper")
    return ",".join(parts), f"/{path}" if path else ""


def _parse_host(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not host.strip("[]") or (":" in host and not is_bracketed) or any(c.isspace() for c in host):
        raise ValueError(f"{text or 'an empty entry'} is not host:port")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{text} has no valid port")
    return f"{host}:{int(port)}"
