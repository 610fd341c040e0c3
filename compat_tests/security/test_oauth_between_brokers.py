"""OAUTHBEARER between brokers: tokens of an issuer that the test runs, by credentials, assertions or in a file."""

import base64
import json
import socket
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization

from compat_tests.clients.common import wait_until
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster
from compat_tests.cluster.status import show_status
from compat_tests.http_server import serving
from compat_tests.security.test_oauthbearer import HANDLER, LOGIN_HANDLER, LOGIN_MODULE, PREFIX
from compat_tests.security.test_tls import round_trip
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import (
    make_jwk,
    make_key_set,
    private_key,
    public_pem,
    sign,
)
from odradek.testing_cluster import OdradekCluster

CLIENT_ID, SECRET = "broker", "the-broker-secret"
VALUES = [b"%d" % number for number in range(500)]


class Issuer:
    """An issuer of keys and, by the client-credentials grant, of tokens.

    lifetime_s: of the brokers' tokens
    granted: number of tokens; `refused`: number of requests with wrong credentials
    assertions: those of all requests that were granted
    scopes: the scopes of all requests
    """

    def __init__(self) -> None:
        self.lifetime_s = 600
        self.granted = self.refused = 0
        self.assertions: list[str] = []
        self.scopes: set[str] = set()
        self.key = private_key("RS256")
        self.url = ""

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if method == "GET":
            return 200, make_key_set(make_jwk(self.key, "RS256", kid="1"))
        return self.grant(headers.get("Authorization"), body.decode())

    def issue(self, subject: str = CLIENT_ID, lifetime_s: int = 600) -> str:
        now_s = int(time.time())
        return sign(self.key, "RS256", {"kid": "1"}, sub=subject, iat=now_s - 60, exp=now_s + lifetime_s)

    def grant(self, authorization: str | None, body: str) -> tuple[int, bytes]:
        form = dict(urllib.parse.parse_qsl(body))
        if not (self.accept_assertion(form) if authorization is None else self.accept_secret(authorization, form)):
            self.refused += 1
            return 401, b'{"error": "invalid_client", "error_description": "unknown client"}'
        self.granted += 1
        self.scopes.add(form.get("scope", ""))
        token = self.issue(lifetime_s=self.lifetime_s)
        return 200, json.dumps({"access_token": token, "expires_in": self.lifetime_s}).encode()

    def accept_secret(self, authorization: str, form: Mapping[str, str]) -> bool:
        assert form["grant_type"] == "client_credentials"
        return base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"{CLIENT_ID}:{SECRET}"

    def accept_assertion(self, form: Mapping[str, str]) -> bool:
        """Verify the signature and the claims of an assertion, which must be new."""
        if form["grant_type"] == "client_credentials":
            assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            assertion = form["client_assertion"]
        else:
            assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
            assertion = form["assertion"]
        key = public_pem(private_key("ES256", "broker"))
        try:
            claims = jwt.decode(assertion, key, ["ES256"], audience=self.url, issuer=CLIENT_ID)
        except jwt.InvalidTokenError:
            return False
        assert claims["sub"] == CLIENT_ID
        assert assertion not in self.assertions
        self.assertions.append(assertion)
        return True


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    with serving(made.respond) as made.url:
        yield made


def broker_properties(issuer: Issuer, secret: str = SECRET, **options: str) -> dict[str, str]:
    options = {"clientId": CLIENT_ID, "clientSecret": secret, **options}
    login = " ".join(f'{name}="{value}"' for name, value in options.items())
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        f"{PREFIX}.sasl.jaas.config": f"{LOGIN_MODULE} required {login};",
        f"{PREFIX}.sasl.login.callback.handler.class": LOGIN_HANDLER,
        f"{PREFIX}.sasl.server.callback.handler.class": HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/keys",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
    }


def client(issuer: Issuer, servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda configuration: (issuer.issue("alice"), time.time() + 600),
        "log_level": 0,
    }


def replicate(issuer: Issuer, cluster: OdradekCluster, topic: str) -> None:
    """Write and read a topic whose records are acknowledged by two brokers."""
    configuration = client(issuer, cluster.bootstrap_servers)
    assert round_trip(configuration, topic, VALUES, acks="all") == VALUES
    [partition] = AdminClient(configuration).list_topics(topic, timeout=20).topics[topic].partitions.values()
    assert len(partition.replicas) == 2


def size_two(properties: Mapping[str, str], *, awaits_all: bool = True) -> OdradekCluster:
    return OdradekCluster({**properties, "min.insync.replicas": "2"}, size=2, awaits_all=awaits_all)


def client_properties(issuer: Issuer, secret: str) -> str:
    return (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={issuer.url}/token\nsasl.oauthbearer.scope=kafka\n"
        f"sasl.oauthbearer.client.credentials.client.id={CLIENT_ID}\n"
        f"sasl.oauthbearer.client.credentials.client.secret={secret}\n"
    )


def test_a_cluster_with_client_credentials(issuer: Issuer, tmp_path: Path) -> None:
    with size_two(broker_properties(issuer, scope="kafka", extension_traceId="1")) as cluster:
        replicate(issuer, cluster, "t")
        assert issuer.granted == 2
        assert SECRET not in cluster.log_text()
        file = tmp_path / "client.properties"
        status = show_status(cluster, file, client_properties(issuer, SECRET))
        assert (status.returncode, status.stderr) == (0, "")
        refused = show_status(cluster, file, client_properties(issuer, "wrong-secret"))
        assert refused.returncode == 3
        reason = f"does not authenticate the token of {issuer.url}/token: cannot obtain it: it responded 401"
        assert reason in refused.stderr
        assert "wrong-secret" not in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert issuer.scopes == {"kafka"}


def write_key(path: Path, name: str) -> None:
    encryption = serialization.BestAvailableEncryption(SECRET.encode())
    key = private_key("ES256", name)
    data = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    # Brokers may read the file at any time.
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)


def assertion_properties(issuer: Issuer, key: Path) -> dict[str, str]:
    properties = broker_properties(issuer)
    del properties[f"{PREFIX}.sasl.jaas.config"]
    assertion = {
        "algorithm": "ES256",
        "claim.aud": issuer.url,
        "claim.iss": CLIENT_ID,
        "claim.jti.include": "true",
        "claim.sub": CLIENT_ID,
        "private.key.file": str(key),
        "private.key.passphrase": SECRET,
    }
    return {
        **properties,
        f"{PREFIX}.sasl.oauthbearer.scope": "kafka",
        **{f"{PREFIX}.sasl.oauthbearer.assertion.{name}": value for name, value in assertion.items()},
    }


@pytest.mark.parametrize("retriever", ["JwtBearerJwtRetriever", "ClientCredentialsJwtRetriever"])
def test_a_cluster_with_assertions(issuer: Issuer, tmp_path: Path, retriever: str) -> None:
    issuer.lifetime_s = 8
    key = tmp_path / "key.pem"
    write_key(key, "broker")
    properties = {
        **assertion_properties(issuer, key),
        f"{PREFIX}.sasl.oauthbearer.jwt.retriever.class": f"org.apache.kafka.common.security.oauthbearer.{retriever}",
    }
    with size_two(properties) as cluster:
        replicate(issuer, cluster, "t")
        before = issuer.granted
        wait_until(lambda: issuer.granted >= before + 4, what="renewed tokens", timeout_s=60)
        replicate(issuer, cluster, "u")
        log = cluster.log_text()
        assert "cannot obtain a token" not in log
        assert SECRET not in log
        assert not [assertion for assertion in issuer.assertions if assertion in log]
    assert issuer.scopes == {"kafka"}
    assert issuer.refused == 0


def await_refusals(issuer: Issuer, cluster: OdradekCluster) -> None:
    """Wait until both brokers, of which one may start much later, have reported a failure, and one has tried again."""
    wait_until(
        lambda: issuer.refused >= 4 and cluster.log_text().count("cannot obtain a token") >= 2,
        what="retries",
        timeout_s=60,
    )


def test_a_wrong_key_is_reported_once_and_can_be_replaced(issuer: Issuer, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    write_key(key, "other")
    retriever = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
    properties = {**assertion_properties(issuer, key), "sasl.oauthbearer.jwt.retriever.class": retriever}
    with size_two(properties, awaits_all=False) as cluster:
        await_refusals(issuer, cluster)
        lines = [line for line in cluster.log_text().splitlines() if "cannot obtain a token" in line]
        assert len(lines) == 2
        for line in lines:
            assert f"check {PREFIX}.sasl.oauthbearer.assertion.private.key.file" in line
        write_key(key, "broker")
        wait_until(lambda: cluster.log_text().count("obtained a token") == 2, what="tokens", timeout_s=60)
        replicate(issuer, cluster, "t")


def test_tokens_are_renewed_and_sessions_too(issuer: Issuer) -> None:
    # A connection is authenticated again when 15 % of this time remain: more than a request takes on a busy machine.
    issuer.lifetime_s = 15
    with size_two(broker_properties(issuer)) as cluster:
        replicate(issuer, cluster, "t")
        before = issuer.granted
        # Two lifetimes: the first tokens and sessions have expired.
        wait_until(lambda: issuer.granted >= before + 4, what="renewed tokens", timeout_s=60)
        replicate(issuer, cluster, "u")
        assert "the session has expired" not in cluster.log_text()
        assert "cannot obtain a token" not in cluster.log_text()


def test_a_wrong_secret_is_reported_once(issuer: Issuer) -> None:
    with size_two(broker_properties(issuer, "wrong-secret"), awaits_all=False) as cluster:
        await_refusals(issuer, cluster)
        lines = [line for line in cluster.log_text().splitlines() if "cannot obtain a token" in line]
        assert len(lines) == 2
        for line in lines:
            assert "401 invalid_client: unknown client; check clientId and clientSecret of" in line
            assert f"{PREFIX}.sasl.jaas.config" in line
        assert "wrong-secret" not in cluster.log_text()


def test_a_token_in_a_file_is_read_again(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.issue(lifetime_s=-1) + "\n")
    properties = {**broker_properties(issuer), "sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    with size_two(properties, awaits_all=False) as cluster:
        failure = "the token has expired already"
        wait_until(lambda: cluster.log_text().count(failure) >= 2, what="failures", timeout_s=60)
        new = tmp_path / "new"
        new.write_text(issuer.issue() + "\n")
        new.rename(file)
        wait_until(lambda: cluster.log_text().count("obtained a token") == 2, what="tokens", timeout_s=60)
        replicate(issuer, cluster, "t")
    assert issuer.granted == 0


def test_a_stop_does_not_wait_for_an_issuer_that_hangs(issuer: Issuer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {
            **broker_properties(issuer),
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{silent.getsockname()[1]}/token",
            # Longer than the test waits for the broker.
            "sasl.login.read.timeout.ms": "3600000",
        }
        with OdradekCluster(properties, size=1) as cluster:
            connection, _ = silent.accept()
            with connection:
                assert cluster.stop_broker(1) == 0
            assert "Traceback" not in cluster.log_text()


@pytest.mark.usefixtures("kafka_jars")
def test_a_mixed_cluster(issuer: Issuer, tmp_path: Path) -> None:
    issuer.lifetime_s = 20
    properties = {**broker_properties(issuer), "min.insync.replicas": "3"}
    del properties["listeners"]
    with MixedCluster({1: ODRADEK, 2: KAFKA, 3: ODRADEK}, tmp_path, properties, "SASL_PLAINTEXT") as cluster:
        for number in (1, 2, 3):
            cluster.start(number)
        configuration = client(issuer, cluster.bootstrap_servers)
        for number, controller in enumerate((1, 2)):
            cluster.elect_controller(controller)
            assert round_trip(configuration, f"t{number}", VALUES, acks="all") == VALUES
