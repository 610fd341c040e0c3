"""`odradek cluster status --command-config`: TLS and SASL, with the files of Kafka's tools."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compat_tests import processes
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.sasl_users import PLAIN_MODULE
from odradek.server.security.tls.certificates import write_test_certificates
from odradek.testing import OdradekBroker


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("status")
    write_test_certificates(path, datetime.now(UTC))
    return path


def properties(directory: Path, ports: list[int]) -> dict[str, str]:
    """Return the properties of a broker of either kind, with listeners for TLS, and for TLS and SASL."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CERT://127.0.0.1:{ports[0]},PASSWORD://127.0.0.1:{ports[1]}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CERT:SSL,PASSWORD:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "listener.name.cert.ssl.client.auth": "required",
        "listener.name.password.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.password.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="alice-secret";',
    }


class Kafka(ApacheKafkaBroker):
    """Apache Kafka with the listeners of `properties`."""

    def _effective_properties(self) -> dict[str, str]:
        effective = super()._effective_properties()
        listeners = effective["listeners"].replace("127.0.0.1:0,", f"127.0.0.1:{self.port},")
        return {**effective, "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller_port}"}


@pytest.fixture(scope="module", params=["odradek", "kafka"])
def ports(request: pytest.FixtureRequest, directory: Path, kafka_jars: list[Path]) -> Iterator[tuple[int, int]]:
    first, second = processes.lasting_ports(2)
    kind = OdradekBroker if request.param == "odradek" else Kafka
    with kind(properties(directory, [first, second])):
        yield first, second


def client(directory: Path, name: str, *, key: str | None = None, password: str | None = None) -> Path:
    """Write and return the file of a client."""
    lines = [
        f"security.protocol={'SSL' if password is None else 'SASL_SSL'}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={directory / 'ca.pem'}",
        "client.id=ignored",
    ]
    if key is not None:
        lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={directory / key}"]
    if password is not None:
        jaas = f'{PLAIN_MODULE} required username="alice" password="{password}";'
        lines += ["sasl.mechanism=PLAIN", f"sasl.jaas.config={jaas}"]
    path = directory / f"{name}.properties"
    path.write_text("\n".join(lines) + "\n")
    return path


def run(port: int, file: Path | None, host: str = "127.0.0.1") -> subprocess.CompletedProcess[str]:
    config = [] if file is None else ["--command-config", str(file)]
    command = [sys.executable, "-m", "odradek", "cluster", "status", "--bootstrap-server", f"{host}:{port}", "--json"]
    return subprocess.run([*command, *config], capture_output=True, text=True, timeout=60, check=False)


def test_a_certificate(ports: tuple[int, int], directory: Path) -> None:
    file = client(directory, "certificate", key="client.pem")
    done = run(ports[0], file)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["brokers"][0]["port"] == ports[0]
    tools.run(tools.BROKER_API_VERSIONS, "--bootstrap-server", f"127.0.0.1:{ports[0]}", "--command-config", str(file))


def test_a_password(ports: tuple[int, int], directory: Path) -> None:
    done = run(ports[1], client(directory, "password", password="alice-secret"))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["brokers"][0]["port"] == ports[1]


def test_failures(ports: tuple[int, int], directory: Path) -> None:
    wrong = run(ports[1], client(directory, "wrong", password="wrong-secret"))
    assert wrong.returncode == 3 and "does not authenticate user alice" in wrong.stderr
    assert "wrong-secret" not in wrong.stderr
    none = run(ports[0], client(directory, "none"))
    assert none.returncode == 3 and "does not answer" in none.stderr
    plaintext = run(ports[0], None)
    assert plaintext.returncode == 3 and "does not answer" in plaintext.stderr
    for done in (wrong, none, plaintext):
        assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=TLS", "security.protocol: must be one of"),
        ("security.protocol=SSL\nssl.truststore.location=/none.jks", "ssl.truststore.location: cannot be read"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=DIGEST-MD5",
            "Invalid value DIGEST-MD5 for configuration sasl.mechanism: must be one of",
        ),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN", "sasl.jaas.config: must be set"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.jaas.config={PLAIN_MODULE} required username=x;",
            "Invalid value [hidden] for configuration sasl.jaas.config: must have the option password",
        ),
    ],
)
def test_an_invalid_file(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    done = run(1, file)
    assert done.returncode == 2 and reason in done.stderr
    assert run(1, tmp_path / "absent").returncode == 2
