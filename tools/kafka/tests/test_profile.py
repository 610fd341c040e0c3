"""Connections that options, environment and the profile file select."""

import pytest

from odradek.server.config.properties.sasl import LOGIN_MODULES
from odradek.tools.kafka.connection.confluent_settings import make_confluent_settings
from odradek.tools.kafka.connection.profile import (
    Connection,
    ProfileError,
    find_connection,
    find_misspelt,
    make_security,
)
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity

SCRAM_MODULE = LOGIN_MODULES["SCRAM-SHA-256"]
FILE = """
[default]
bootstrap.servers = "one:1, two:2"

[production]
bootstrap.servers = ["three:3"]
security.protocol = "SASL_SSL"
ssl.truststore.type = "PEM"
ssl.truststore.location = "/ca.pem"
sasl.mechanism = "SCRAM-SHA-512"
sasl.jaas.config = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
schema.registry.url = "https://registry"
request.timeout.ms = 5000

[broken]
security.protocol = "TLS"
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "odradek").mkdir()
    (tmp_path / "odradek" / "profiles.toml").write_text(FILE)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def find(environment, server=None, config=None, profile=None):
    return find_connection(server, config, profile, environment)


def test_the_selection(environment, tmp_path):
    assert find({"XDG_CONFIG_HOME": str(tmp_path / "none")}).bootstrap_servers == "127.0.0.1:9092"
    assert find(environment).addresses == [Address("one", 1), Address("two", 2)]
    assert find(environment, profile="production").bootstrap_servers == "three:3"
    assert find({**environment, "ODRADEK_PROFILE": "production"}).schema_registry_url == "https://registry"
    assert find({**environment, "ODRADEK_PROFILE": "production"}, profile="default").bootstrap_servers == "one:1,two:2"
    # The properties of a profile that was not selected, such as passwords, never reach another server.
    assert find(environment, "other:9") == Connection([Address("other", 9)], {})
    assert find(environment, "other:9", profile="production").properties["request.timeout.ms"] == "5000"


def test_misspelt_properties():
    names = ["securty.protocol", "Security.Protocol", "sasl.mechanisms", "ssl.trustore.location", "bootstrap.server"]
    right = ["security.protocol", "security.protocol", "sasl.mechanism", "ssl.truststore.location", "bootstrap.servers"]
    assert find_misspelt(dict.fromkeys(names, "")) == list(zip(names, right, strict=True))
    others = ["ssl.key.location", "ssl.protocol", "ssl.provider", "sasl.password", "acks", "request.timeout.ms"]
    assert find_misspelt(dict.fromkeys([*right, *others], "")) == []


def test_a_file_of_client_properties_takes_precedence(environment, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\nbootstrap.servers=four:4\n")
    found = find(environment, config=str(file), profile="production")
    assert (found.properties["security.protocol"], found.bootstrap_servers) == ("PLAINTEXT", "four:4")
    assert make_security(found) == ClientSecurity()
    assert find(environment, "five:5", str(file), "production").bootstrap_servers == "five:5"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "prodution"}, "has no such profile; did you mean production?"),
        ({"server": "x"}, "--bootstrap-server x: x is not host:port"),
        ({"config": "/none"}, "--command-config /none: No such file or directory"),
    ],
)
def test_errors(environment, options, message):
    with pytest.raises(ProfileError) as caught:
        find(environment, **options)
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read(environment, tmp_path):
    file = tmp_path / "odradek" / "profiles.toml"
    file.write_text("default = 1")
    with pytest.raises(ProfileError, match="default must be a table"):
        find(environment)
    file.write_text("[default")
    with pytest.raises(ProfileError, match=r"profiles\.toml: "):
        find(environment)
    file.unlink()
    with pytest.raises(ProfileError, match="does not exist"):
        find(environment, profile="production")


def test_invalid_security(environment):
    with pytest.raises(ProfileError, match=r"security\.protocol"):
        make_security(find(environment, profile="broken"))


def test_settings_of_confluent_kafka(environment):
    assert make_confluent_settings(find(environment)) == {"bootstrap.servers": "one:1,two:2"}
    assert make_confluent_settings(find(environment, profile="production")) == {
        "bootstrap.servers": "three:3",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "request.timeout.ms": "5000",
    }


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "SSL", "ssl.truststore.location": "x.jks"}, "needs a PEM file"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "DIGEST"}, "sasl.mechanism DIGEST: must be one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config must be set"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "nonsense secret"},
            "sasl.jaas.config",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f"{SCRAM_MODULE} required username=id password=secret tokenauth=true;",
            },
            "sasl.jaas.config: this command cannot use a delegation token (librdkafka has no tokenauth)",
        ),
    ],
)
def test_what_confluent_kafka_cannot_use(properties, message):
    with pytest.raises(ProfileError) as caught:
        make_confluent_settings(Connection([Address("h", 1)], properties))
    assert message in str(caught.value) and "secret" not in str(caught.value)


def test_a_user_without_a_home_directory_has_no_profiles(monkeypatch):
    def expanduser(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", expanduser)
    assert find_connection(None, None, None, {}).bootstrap_servers == "127.0.0.1:9092"
