"""A broker with a SASL_SSL listener, ACLs and delegation tokens, and clients with a user's password."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # some are not exported explicitly
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from odradek.testing import OdradekBroker
from spark_it.tests import records
from spark_it.tests.data import Topics

SUPER_USER = "admin"
MECHANISM = "SCRAM-SHA-512"
LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TIMEOUT_S = 30

Right = tuple[ResourceType, ResourcePatternType, str, AclOperation]


def make_password(user: str) -> str:
    return f"{user}-secret"


def topic(name: str, *operations: AclOperation) -> list[Right]:
    """Return the rights to perform operations on a topic."""
    return [(ResourceType.TOPIC, ResourcePatternType.LITERAL, name, operation) for operation in operations]


def group(name: str) -> list[Right]:
    """Return the right to commit offsets of a group."""
    return [(ResourceType.GROUP, ResourcePatternType.LITERAL, name, AclOperation.READ)]


def transactional_ids(prefix: str) -> list[Right]:
    """Return the right to write in transactions with ids that begin with `prefix`."""
    return [(ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED, prefix, AclOperation.WRITE)]


def _run(*arguments: str, stdin: str = "") -> None:
    """Run the command `odradek`."""
    command = [sys.executable, "-m", "odradek", *arguments]
    subprocess.run(command, input=stdin, text=True, check=True, capture_output=True, timeout=60)


class Connection(NamedTuple):
    """Address and certificate authority of the broker, in the configurations of its clients."""

    servers: str
    authority: Path

    def librdkafka(self, user: str, password: str | None = None) -> dict[str, str]:
        return {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": make_password(user) if password is None else password,
            "ssl.ca.location": str(self.authority),
        }

    def java_tls(self) -> dict[str, str]:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}

    def java_sasl(self, user: str, password: str | None = None) -> dict[str, str]:
        password = make_password(user) if password is None else password
        return {
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{LOGIN_MODULE} required username="{user}" password="{password}";',
        }

    def java(self, user: str, password: str | None = None) -> dict[str, str]:
        return {"security.protocol": "SASL_SSL", **self.java_tls(), **self.java_sasl(user, password)}


class SecuredBroker:
    """The broker, within its context. Its super user manages topics, users and their rights."""

    def __init__(self, directory: Path) -> None:
        self._certificates = directory / "certificates"
        properties = {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._certificates / "broker.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{SUPER_USER}",
            "delegation.token.secret.key": "the secret of all brokers",
            "auto.create.topics.enable": "false",
        }
        self.process = OdradekBroker(properties, directory=directory / "broker", log_level="debug")

    def __enter__(self) -> Self:
        _run("tls", "make-test-certificates", str(self._certificates))
        data = f"log.dirs={self.process.data_dir}"
        _run("user", "add", SUPER_USER, "--override", data, stdin=f"{make_password(SUPER_USER)}\n")
        self.process.start()
        self.connection = Connection(self.process.bootstrap_servers, self._certificates / "ca.pem")
        servers: dict[str, Any] = {"bootstrap.servers": self.connection.servers, "log_level": 0}
        self._security = self.connection.librdkafka(SUPER_USER)
        self._admin = AdminClient(servers | self._security)
        self.topics = Topics(self.connection.servers, self._security)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close()

    def add_user(self, user: str, rights: Iterable[Right]) -> str:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(user, info, make_password(user).encode())
        self._admin.alter_user_scram_credentials([upsertion])[user].result(TIMEOUT_S)
        self.grant(user, rights)
        return user

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        acls = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for kind, pattern, name, operation in rights
        ]
        for added in self._admin.create_acls(acls).values():
            added.result(TIMEOUT_S)

    def read(self, name: str) -> list[Any]:
        """Return the records of a topic, read by the super user."""
        found: list[Any] = records.messages(self.connection.servers, name, security=self._security)
        return found

    def remove_user(self, user: str) -> None:
        """Remove the user's password; its ACLs remain."""
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        self._admin.alter_user_scram_credentials([deletion])[user].result(TIMEOUT_S)
