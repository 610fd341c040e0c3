"""Clients whose security is not that of the listener: what to try."""

import pytest

from odradek.testing import OdradekBroker
from odradek.tools.cli.main import main

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def sasl_broker():
    """A broker with listeners PLAINTEXT and SASL_PLAINTEXT."""
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} user_alice="secret";',
    }
    with OdradekBroker(properties) as broker:
        yield broker


def test_a_client_without_sasl_on_a_listener_with_sasl(sasl_broker, capsys):
    assert main(["topic", "list", "--bootstrap-server", sasl_broker.addresses[1]]) == 3
    assert "(if the listener has SASL, set security.protocol=SASL_PLAINTEXT)" in capsys.readouterr().err


def test_a_client_with_sasl_on_a_listener_without_sasl(sasl_broker, capsys, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} username="alice" password="secret";\n'
    )
    server = ["--bootstrap-server", sasl_broker.addresses[0], "--command-config", str(config)]
    assert main(["topic", "list", *server]) == 3
    err = capsys.readouterr().err
    hint = "the listener has no SASL: try security.protocol=PLAINTEXT"
    assert err.endswith(f"SaslHandshake with PLAIN returns ILLEGAL_SASL_STATE ({hint})\n")
