"""Brokers with a listener for each security protocol, a user, and ACLs.

Each has the listeners PLAINTEXT (its client is a super user, and prepares the load), SSL and SASL_PLAINTEXT.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import brokers
from benchmarks.connections import NO_SECURITY, Security
from benchmarks.measure import Contestant
from benchmarks.security.rows import KAFKA, OPEN, PLAINTEXT, SCRAM, TLS

USER, PASSWORD, MECHANISM = "load", "load-secret", "SCRAM-SHA-256"
TOPIC_PREFIX = "bench-"
MANY_ACLS, ACLS_AT_ONCE = 10_000, 500
LISTENERS = (PLAINTEXT, TLS, SCRAM)
SUPER_USERS = "User:ANONYMOUS"
ADMIN_TIMEOUT_S = 60


class SecuredContestant(Contestant):
    """A running broker with its listeners' ports."""

    def __init__(self, broker: brokers.RunningBroker, name: str, ports: Mapping[str, int], ca: Path) -> None:
        super().__init__(broker, name)
        self.ports = ports
        self._ca = ca

    def security(self, listener: str) -> Security:
        """Return how a load connects to a listener."""
        if listener == TLS:
            return Security(ca=str(self._ca))
        if listener == SCRAM and self.name != OPEN:
            return Security(mechanism=MECHANISM, user=USER, password=PASSWORD)
        return NO_SECURITY

    def load_fields(self, listener: str) -> dict[str, Any]:
        """Return the fields of a LoadSpec that choose a listener."""
        return {"ports": [self.ports[listener]], "security": self.security(listener)}


@contextmanager
def start(name: str) -> Iterator[SecuredContestant]:
    """Start a broker, with a user and ACLs unless it is OPEN."""
    with tempfile.TemporaryDirectory() as directory:
        certificates = Path(directory)
        _write_certificates(certificates)
        ports = dict(zip(LISTENERS, brokers.free_ports(len(LISTENERS)), strict=True))
        properties = _tls_properties(certificates)
        if name == OPEN:
            ports[SCRAM] = ports[PLAINTEXT]
        else:
            properties.update(_rights_properties(is_kafka=name == KAFKA))
        listeners = ",".join(f"{one}://127.0.0.1:{port}" for one, port in ports.items() if name != OPEN or one != SCRAM)
        make = brokers.apache_kafka if name == KAFKA else brokers.odradek
        if name == KAFKA:
            (controller,) = brokers.free_ports(1)
            properties["controller.quorum.voters"] = f"1@127.0.0.1:{controller}"
            listeners += f",CONTROLLER://127.0.0.1:{controller}"
            names = ",".join(f"{one}:{one}" for one in LISTENERS)
            properties["listener.security.protocol.map"] = f"{names},CONTROLLER:PLAINTEXT"
        with make({**properties, "listeners": listeners}) as broker:
            contestant = SecuredContestant(_OnPort(broker, ports[PLAINTEXT]), name, ports, certificates / "ca.pem")
            if name != OPEN:
                _create_rights(f"127.0.0.1:{ports[PLAINTEXT]}", MANY_ACLS if name == "odradek" else 0)
            yield contestant


class _OnPort:
    """A broker, with the port of its plaintext listener."""

    def __init__(self, broker: brokers.RunningBroker, port: int) -> None:
        self.port = port
        self.pid = broker.pid
        self.data_dir = broker.data_dir
        self.bootstrap_servers = f"127.0.0.1:{port}"


def _write_certificates(directory: Path) -> None:
    from odradek.server.security.tls.certificates import Authority

    authority = Authority(datetime.now(UTC))
    (directory / "ca.pem").write_bytes(authority.certificate)
    (directory / "broker.pem").write_bytes(b"".join(authority.issue("broker", ["localhost", "127.0.0.1"])))


def _tls_properties(directory: Path) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(directory / "broker.pem")}


def _rights_properties(*, is_kafka: bool) -> dict[str, str]:
    authorizer = (
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        if is_kafka
        else "kafka.security.authorizer.AclAuthorizer"
    )
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "authorizer.class.name": authorizer,
        "super.users": SUPER_USERS,
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.sasl_plaintext.{MECHANISM.lower()}.sasl.jaas.config": module,
    }


def _create_rights(servers: str, more_acls: int) -> None:
    """Create the load's user and its ACLs, and as many ACLs of other users for topics of the load."""
    # The types of confluent_kafka.admin do not export its names.
    kafka: Any = import_module("confluent_kafka.admin")
    admin = kafka.AdminClient({"bootstrap.servers": servers})
    info = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_256, 4096)
    created = admin.alter_user_scram_credentials([kafka.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())])
    for future in created.values():
        future.result(ADMIN_TIMEOUT_S)

    def allow(user: str, name: str, pattern: Any, operation: Any) -> Any:
        allowed = kafka.AclPermissionType.ALLOW
        return kafka.AclBinding(kafka.ResourceType.TOPIC, name, pattern, f"User:{user}", "*", operation, allowed)

    prefixed, literal = kafka.ResourcePatternType.PREFIXED, kafka.ResourcePatternType.LITERAL
    operations = (kafka.AclOperation.READ, kafka.AclOperation.WRITE, kafka.AclOperation.DESCRIBE)
    acls = [allow(USER, TOPIC_PREFIX, prefixed, operation) for operation in operations]
    for number in range(more_acls):
        # Half of them are for topics that the load uses.
        name, pattern = (TOPIC_PREFIX, prefixed) if number % 2 else (f"other-{number}", literal)
        acls.append(allow(f"user-{number}", name, pattern, kafka.AclOperation.READ))
    for first in range(0, len(acls), ACLS_AT_ONCE):
        for future in admin.create_acls(acls[first : first + ACLS_AT_ONCE]).values():
            future.result(ADMIN_TIMEOUT_S)
