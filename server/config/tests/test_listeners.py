"""Listeners and advertised listeners in the configuration."""

import pytest

from odradek.properties import PropertyError
from odradek.server.config import BrokerConfig, Listener, parse_config
from odradek.server.config.listeners import find_open_listeners


def endpoints(**values):
    return parse_config({name.replace("_", "."): text for name, text in values.items()}).config


def test_the_default_listens_on_every_interface():
    config = endpoints()
    assert config.endpoints == (Listener("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert config.inter_broker_name == "PLAINTEXT"


@pytest.mark.parametrize(
    ("text", "host", "port", "address"),
    [
        ("PLAINTEXT://:9092", "", 9092, ":9092"),
        ("plaintext://localhost:0", "localhost", 0, "localhost:0"),
        ("PLAINTEXT://broker-1.example_org:65535", "broker-1.example_org", 65535, "broker-1.example_org:65535"),
        ("PLAINTEXT://[::1]:9092", "::1", 9092, "[::1]:9092"),
        ("PLAINTEXT://[fe80::1%eth0]:9092", "fe80::1%eth0", 9092, "[fe80::1%eth0]:9092"),
    ],
)
def test_a_listener_is_read(text, host, port, address):
    (listener,) = endpoints(listeners=text).endpoints
    assert (listener.host, listener.port, listener.address) == (host, port, address)
    assert str(listener) == f"PLAINTEXT://{address}"


@pytest.mark.parametrize(
    "text",
    [
        "localhost:9092",
        "PLAINTEXT://localhost",
        "PLAINTEXT://h:65536",
        "PLAINTEXT://::1:9092",
        "://:1",
        "PLAINTEXT://a b:1",
    ],
)
def test_a_malformed_listener_is_refused(text):
    with pytest.raises(PropertyError, match=r"for configuration listeners: must be NAME://host:port"):
        endpoints(listeners=text)


def test_a_listener_name_needs_a_security_protocol():
    with pytest.raises(PropertyError, match=r"listener.security.protocol.map has no security protocol for INSIDE"):
        endpoints(listeners="INSIDE://:9092")
    config = endpoints(
        listeners="INSIDE://:9092,outside://:9093",
        listener_security_protocol_map="inside:PLAINTEXT, OUTSIDE:PLAINTEXT",
        inter_broker_listener_name="inside",
    )
    assert [(e.name, e.protocol) for e in config.endpoints] == [("INSIDE", "PLAINTEXT"), ("OUTSIDE", "PLAINTEXT")]
    assert config.inter_broker_name == "INSIDE"


@pytest.mark.parametrize("text", ["PLAINTEXT:TLS", "PLAINTEXT", ":PLAINTEXT", "A:PLAINTEXT,a:PLAINTEXT"])
def test_a_bad_protocol_map_is_refused(text):
    with pytest.raises(PropertyError, match=r"for configuration listener\.security\.protocol\.map: "):
        endpoints(listener_security_protocol_map=text)


TWO = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT", "inter.broker.listener.name": "A"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A://:1,A://:2", "A is named twice"),
        ("A://:1,a://:2", "A is named twice"),
        ("A://x:1,B://y:1", "port 1 is used twice"),
        ("A://127.0.0.1:1,B://127.0.0.2:1", "port 1 is used twice"),
    ],
)
def test_conflicting_listeners_are_refused(text, message):
    with pytest.raises(PropertyError, match=message):
        parse_config({**TWO, "listeners": text})


@pytest.mark.parametrize("text", ["A://127.0.0.1:1,B://[::1]:1", "A://:0,B://:0", "A://:1,B://:2"])
def test_listeners_without_conflict_are_accepted(text):
    assert len(parse_config({**TWO, "listeners": text}).config.endpoints) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_wildcard_is_not_advertised(host):
    with pytest.raises(PropertyError, match=r"for configuration listeners: clients cannot connect to"):
        endpoints(listeners=f"PLAINTEXT://{host}:9092")
    with pytest.raises(PropertyError, match=r"for configuration advertised.listeners: clients cannot connect"):
        endpoints(advertised_listeners=f"PLAINTEXT://{host}:9092")
    config = endpoints(listeners=f"PLAINTEXT://{host}:9092", advertised_listeners="PLAINTEXT://localhost:9092")
    assert config.advertise({}, "other") == (Listener("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)


def test_advertised_listeners_must_be_among_the_listeners():
    with pytest.raises(PropertyError, match=r"configuration advertised\.listeners: must name any of: PLAINTEXT"):
        endpoints(advertised_listeners="SSL://localhost:9092")


def test_advertised_addresses_use_the_bound_port_and_the_host_name():
    config = endpoints(listeners="PLAINTEXT://:0")
    assert [str(one) for one in config.advertise({"PLAINTEXT": 4711}, "box")] == ["PLAINTEXT://box:4711"]
    config = endpoints(listeners="PLAINTEXT://127.0.0.1:0", advertised_listeners="PLAINTEXT://127.0.0.1:0")
    assert [str(one) for one in config.advertise({"PLAINTEXT": 4711}, "box")] == ["PLAINTEXT://127.0.0.1:4711"]


def test_listeners_of_controllers_are_left_out():
    config = parse_config(
        {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        }
    ).config
    assert [one.name for one in config.endpoints] == ["PLAINTEXT"]
    assert [one.port for one in config.advertised_endpoints] == [9092]


def test_the_inter_broker_listener_must_be_advertised():
    with pytest.raises(PropertyError, match=r"inter\.broker\.listener\.name: must be one of: PLAINTEXT"):
        endpoints(inter_broker_listener_name="SSL")
    cause = "because no listener is named PLAINTEXT; set "
    with pytest.raises(PropertyError, match=rf"{cause}inter\.broker\.listener\.name=A$"):
        parse_config({"listener.security.protocol.map": "A:PLAINTEXT", "listeners": "A://:1"})
    with pytest.raises(PropertyError, match=rf"{cause}security\.inter\.broker\.protocol=SSL$"):
        parse_config({"listeners": "SSL://127.0.0.1:1"})
    with pytest.raises(PropertyError, match=r"together with security\.inter\.broker\.protocol"):
        endpoints(inter_broker_listener_name="PLAINTEXT", security_inter_broker_protocol="PLAINTEXT")


def test_a_dynamic_change_of_listeners_is_parsed():
    config = BrokerConfig({}).replace({"listeners": "PLAINTEXT://:7"})
    assert config.endpoints[0].port == 7


@pytest.mark.parametrize("name", ["ssl.clent.auth", "listener.name.clients.ssl.clent.auth"])
def test_a_misspelt_property_of_tls_is_reported(name):
    """Silence would leave a listener open to clients without a certificate."""
    warnings = parse_config({name: "required"}).warnings
    assert warnings == [f"unknown property {name} is ignored, did you mean ssl.client.auth?"]


def test_properties_of_tls_in_java_have_no_effect():
    names = ["ssl.keymanager.algorithm", "ssl.protocol", "ssl.provider", "ssl.secure.random.implementation"]
    warnings = parse_config(dict.fromkeys(names, "x")).warnings
    assert warnings == [f"properties without effect, because OpenSSL provides TLS: {', '.join(names)}"]
    assert parse_config({"listener.name.clients.ssl.protocol": "x"}).warnings == [
        "properties without effect, because this broker lacks the component: listener.name.clients.ssl.protocol"
    ]


@pytest.mark.parametrize(
    "name", ["principal.builder.class", "ssl.engine.factory.class", "listener.name.clients.ssl.engine.factory.class"]
)
def test_java_classes_that_determine_identities_are_refused(name):
    """Without them a broker would have other principals, keys or trusted certificates than were configured."""
    with pytest.raises(PropertyError, match=f"Invalid value com.example.Own for configuration {name}: must be org"):
        parse_config({name: "com.example.Own"})


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        *((host, True) for host in ("", "0.0.0.0", "[::]", "10.1.2.3", "broker", "127.example")),
        *((host, False) for host in ("127.0.0.1", "127.9.9.9", "localhost", "[::1]")),
    ],
)
def test_listeners_that_other_machines_can_connect_to(host: str, is_open: bool) -> None:
    advertised = "PLAINTEXT://here:9092,SASL_SSL://here:9093"
    listeners = f"PLAINTEXT://{host}:9092,SASL_SSL://:9093"
    config = BrokerConfig({"listeners": listeners, "advertised.listeners": advertised})
    assert [one.name for one in find_open_listeners(config.endpoints)] == (["PLAINTEXT"] if is_open else [])
