"""Properties of SASL."""

import pytest

from odradek.properties import PropertyError
from odradek.server.config import BrokerConfig, parse_config
from odradek.server.security.sasl.settings import (
    SaslSettings,
    make_client_settings,
    make_inter_broker_settings,
    make_sasl_settings,
)

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{PLAIN} required username=broker password=broker-secret user_alice="alice-secret";'
NAME = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
LISTENER = {"listeners": "SASL_PLAINTEXT://:9092", "security.inter.broker.protocol": "SASL_PLAINTEXT"}
BASE = {**LISTENER, "sasl.enabled.mechanisms": "PLAIN", NAME: JAAS}


def settings(**values: str) -> SaslSettings:
    config = parse_config({**BASE, **values}).config
    return make_sasl_settings(config, "SASL_PLAINTEXT")


def test_users_of_plain() -> None:
    [plain] = settings().mechanisms
    assert (plain.mechanism, plain.max_reauth_ms) == ("PLAIN", 0)
    assert plain.require_jaas("username").options["user_alice"] == "alice-secret"


def test_scram_needs_no_login_module() -> None:
    found = settings(**{"sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256"})
    assert [one.mechanism for one in found.mechanisms] == ["SCRAM-SHA-512", "SCRAM-SHA-256"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 0),
        ({"connections.max.reauth.ms": "1"}, 1),
        ({"connections.max.reauth.ms": "1", "listener.name.sasl_plaintext.connections.max.reauth.ms": "2"}, 2),
        (
            {
                "connections.max.reauth.ms": "1",
                "listener.name.sasl_plaintext.connections.max.reauth.ms": "2",
                "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "3",
            },
            3,
        ),
        ({"listener.name.other.plain.connections.max.reauth.ms": "3"}, 0),
        ({"listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": "3"}, 0),
    ],
)
def test_the_most_specific_prefix_wins(values: dict[str, str], expected: int) -> None:
    assert settings(**values).mechanisms[0].max_reauth_ms == expected


def test_properties_of_a_listener() -> None:
    prefix = "listener.name.sasl_plaintext."
    values = {f"{prefix}sasl.enabled.mechanisms": "SCRAM-SHA-256", f"{prefix}sasl.server.max.receive.size": "7"}
    found = settings(**values)
    assert [one.mechanism for one in found.mechanisms] == ["SCRAM-SHA-256"]
    assert found.max_receive_bytes == 7


def test_the_delay_of_failures() -> None:
    assert settings().failure_delay_ms == 100
    assert settings(**{"connection.failed.authentication.delay.ms": "5"}).failure_delay_ms == 5


@pytest.mark.parametrize(
    ("values", "name", "text"),
    [
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "sasl.enabled.mechanisms", "DIGEST-MD5 is not one of"),
        ({"sasl.enabled.mechanisms": "plain"}, "sasl.enabled.mechanisms", "plain is not one of"),
        (
            {"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "X"},
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms",
            "X is not one of",
        ),
        ({NAME: f"{PLAIN} required"}, NAME, "not terminated by semi-colon"),
        ({NAME: f"{SCRAM} required;"}, NAME, f"must be {PLAIN}, not {SCRAM}"),
        (
            {"sasl.server.callback.handler.class": "com.example.Handler"},
            "listener.name.sasl_plaintext.plain.sasl.server.callback.handler.class",
            "must not be set, because Java classes cannot be loaded",
        ),
        ({"connections.max.reauth.ms": "soon"}, "connections.max.reauth.ms", "expected a"),
    ],
)
def test_errors(values: dict[str, str], name: str, text: str) -> None:
    with pytest.raises(PropertyError) as caught:
        settings(**values)
    assert caught.value.name == name
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)


def test_plain_without_a_login_module() -> None:
    with pytest.raises(PropertyError, match=r"plain\.sasl\.jaas\.config: must be set, .*JAAS file, .*is not read"):
        parse_config({**LISTENER, "sasl.enabled.mechanisms": "PLAIN"})


@pytest.mark.parametrize("name", ["sasl.jaas.config", "listener.name.sasl_plaintext.sasl.jaas.config"])
def test_a_login_module_without_a_mechanism_is_ignored_with_a_warning(name: str) -> None:
    [warning] = parse_config({**BASE, name: f"{PLAIN} required x=secret;"}).warnings
    assert warning == f"{name} is ignored: its name must be listener.name.<listener>.<mechanism>.sasl.jaas.config"


def test_no_secret_is_shown() -> None:
    config = parse_config({**BASE, "sasl.mechanism.inter.broker.protocol": "PLAIN"}).config
    credentials = make_client_settings(make_inter_broker_settings(config))
    for shown in (config, make_sasl_settings(config, "SASL_PLAINTEXT"), credentials):
        assert "secret" not in repr(shown)


def test_credentials_between_brokers() -> None:
    config = parse_config({**BASE, "sasl.mechanism.inter.broker.protocol": "PLAIN"}).config
    assert make_client_settings(make_inter_broker_settings(config)) == ("PLAIN", "broker", "broker-secret", False)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "Invalid value GSSAPI for configuration sasl.mechanism.inter.broker.protocol: must be one of"),
        (
            {"sasl.mechanism.inter.broker.protocol": "PLAIN", NAME: f"{PLAIN} required user_a=b;"},
            f"{NAME}: must have the option username",
        ),
    ],
)
def test_a_broker_of_a_cluster_needs_credentials(values: dict[str, str], text: str) -> None:
    cluster = {**BASE, "zookeeper.connect": "localhost:1", "broker.id": "1"}
    with pytest.raises(PropertyError, match="configuration") as caught:
        parse_config({**cluster, **values})
    assert text in str(caught.value)


def test_a_single_broker_needs_no_credentials() -> None:
    assert parse_config(BASE).warnings == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"ssl.client.auth": "required"}, "none"),
        ({"ssl.client.auth": "required", "listener.name.sasl_ssl.ssl.client.auth": "requested"}, "requested"),
        ({"listener.name.sasl_ssl.ssl.client.auth": "required"}, "required"),
    ],
)
def test_certificates_of_clients_with_sasl_are_required_by_the_listener_only(
    values: dict[str, str], expected: str
) -> None:
    config = BrokerConfig({"listeners": "SASL_SSL://:1,SSL://:2", **values})
    assert config.tls_settings("SASL_SSL").client_auth == expected
    assert config.tls_settings("SSL").client_auth == values.get("ssl.client.auth", "none")
