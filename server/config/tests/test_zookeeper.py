"""Properties of ZooKeeper, and the id of a cluster member."""

import subprocess
import sys

import pytest

from odradek.properties import PropertyError
from odradek.server.cli import main
from odradek.server.config import load_config, parse_config
from odradek.server.config.broker import BrokerConfig
from odradek.server.config.properties.zookeeper import DIGEST_LOGIN_MODULE, parse_connect


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zoo", "zoo:2181", ""),
        ("a:1,b:2, c", "a:1,b:2,c:2181", ""),
        ("a:1,b:2/kafka", "a:1,b:2", "/kafka"),
        ("a:1/deep/er/", "a:1", "/deep/er"),
        ("a:1/", "a:1", ""),
        ("[::1]:2181,[fe80::1]/k", "[::1]:2181,[fe80::1]:2181", "/k"),
    ],
)
def test_zookeeper_connect_has_hosts_and_a_path(text, hosts, chroot):
    assert parse_connect(text) == (hosts, chroot)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"zookeeper.connect": ""}, "Invalid value  for configuration zookeeper.connect: an empty entry is not"),
        ({"zookeeper.connect": "a:1,,b:1"}, "an empty entry is not host:port"),
        ({"zookeeper.connect": "a:b"}, "Invalid value a:b for configuration zookeeper.connect: a:b has no valid port"),
        ({"zookeeper.connect": "a:0"}, "a:0 has no valid port"),
        ({"zookeeper.connect": "::1"}, "::1 is not host:port"),
        ({"zookeeper.connect": "a:1/../b"}, "/../b is not a path of ZooKeeper"),
        ({"zookeeper.connect": "a:1/b//c"}, "/b//c is not a path of ZooKeeper"),
        ({"zookeeper.session.timeout.ms": "0"}, "zookeeper.session.timeout.ms: must be at least 1"),
        ({"zookeeper.connection.timeout.ms": "soon"}, "zookeeper.connection.timeout.ms"),
        ({"zookeeper.max.in.flight.requests": "0"}, "must be at least 1"),
        ({"zookeeper.set.acl": "true"}, "Invalid value true for configuration zookeeper.set.acl: requires auth"),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/none.pem"},
            "Invalid value /none.pem for configuration zookeeper.ssl.truststore.location: cannot be read: No such file",
        ),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "/none.jks"},
            "Invalid value /none.jks for configuration zookeeper.ssl.keystore.location: cannot be read: No such file",
        ),
        ({"zookeeper.ssl.crl.enable": "true"}, "zookeeper.ssl.crl.enable: must be false"),
        ({"zookeeper.ssl.protocol": "SSLv3"}, "zookeeper.ssl.protocol: must be one of: TLSv1, TLSv1.1"),
        ({"zookeeper.sasl.jaas.config": "x"}, "Invalid value [hidden] for configuration zookeeper.sasl.jaas.config"),
        (
            {"zookeeper.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
            "the login module must be org.apache.zookeeper.server.auth.DigestLoginModule, not com.sun.security.auth",
        ),
        ({"process.roles": "broker"}, "process.roles: must not be set together with zookeeper.connect"),
        ({"broker.id": "1001"}, "Invalid value 1001 for configuration broker.id: must be between -1 and reserved"),
        ({"node.id": "1001"}, "Invalid value 1001 for configuration node.id: must be between -1 and reserved.broker"),
        ({"broker.id": "-2"}, "Invalid value -2 for configuration broker.id"),
        ({"broker.id.generation.enable": "false"}, "broker.id: must be set, because broker.id.generation.enable"),
    ],
)
def test_invalid_values_are_refused_with_property_and_value(values, message, capsys):
    with pytest.raises(PropertyError) as refused:
        parse_config({"zookeeper.connect": "zoo:2181", **values})
    assert message in str(refused.value)
    overrides = [f"--override={name}={value}" for name, value in {"zookeeper.connect": "zoo:2181", **values}.items()]
    with pytest.raises(SystemExit) as ended:
        main(["start", *overrides])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert " ".join(message.split()) in line


def test_the_java_class_of_kafkas_zookeeper_client_has_no_effect():
    name = "zookeeper.clientCnxnSocket"
    loaded = parse_config({"zookeeper.connect": "z", name: "org.apache.zookeeper.ClientCnxnSocketNetty"})
    assert loaded.warnings == [f"properties without effect, because Java classes cannot be loaded: {name}"]


JAAS = """
KafkaServer { // of the listeners
    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="{b};";
};
/* of ZooKeeper: */
Client {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    username="kafka" password="a \\"secret\\" /* } */ \\\\";
};
Other { org.apache.zookeeper.server.auth.DigestLoginModule required username=o password=p; };
"""


def load_with_options(tmp_path, options, text=JAAS, **values):
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    overrides = ["zookeeper.connect=z", *(f"{name.replace('_', '.')}={value}" for name, value in values.items())]
    return load_config(None, overrides, kafka_opts=options.format(path=path)).config


@pytest.mark.parametrize(
    ("options", "credentials"),
    [
        ("-Djava.security.auth.login.config={path}", ("kafka", 'a "secret" /* } */ \\')),
        ("-Xmx1g '-Djava.security.auth.login.config=file:{path}' -Dx=y", ("kafka", 'a "secret" /* } */ \\')),
        ("-Djava.security.auth.login.config=={path} -Dzookeeper.sasl.clientconfig=Other", ("o", "p")),
        ("-Djava.security.auth.login.config={path} -Dzookeeper.sasl.client=false", None),
        ("-Djava.security.auth.login.config={path} -Dzookeeper.sasl.clientconfig=Absent", None),
        ("-Xmx1g", None),
    ],
)
def test_credentials_of_a_jaas_file_in_kafka_opts(tmp_path, options, credentials):
    config = load_with_options(tmp_path, options)
    assert config.zookeeper_credentials == credentials
    assert "secret" not in repr(config)


def test_the_property_precedes_the_jaas_file(tmp_path):
    own = f"{DIGEST_LOGIN_MODULE} required username=own password=x;"
    config = load_with_options(
        tmp_path, "-Djava.security.auth.login.config={path}", zookeeper_sasl_jaas_config=own, zookeeper_set_acl="true"
    )
    assert config.zookeeper_credentials == ("own", "x")


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ("-Djava.security.auth.login.config=/none", "", "Invalid value /none for configuration java.security.auth"),
        ("-Djava.security.auth.login.config={path}", "Client {", "a section has no end"),
        ("-Djava.security.auth.login.config={path}", "# ZooKeeper\n" + JAAS, "the name of a section is one word"),
        ("-Djava.security.auth.login.config={path}", "Client { x required a; };", "Value not specified for option 1"),
        ("'-Dx=secret", "", r"^Invalid value \[hidden\] for configuration KAFKA_OPTS: No closing quotation"),
    ],
)
def test_a_jaas_file_that_cannot_be_used(tmp_path, options, text, reason):
    with pytest.raises(PropertyError, match=reason):
        load_with_options(tmp_path, options, text)


def test_the_id_of_a_member_is_that_of_its_properties_or_generated():
    assert parse_config({"zookeeper.connect": "z"}).config.node_id == -1
    assert parse_config({"zookeeper.connect": "z", "broker.id": "0"}).config.node_id == 0
    assert parse_config({"zookeeper.connect": "z", "node.id": "3"}).config.node_id == 3
    unlimited = {"zookeeper.connect": "z", "broker.id": "5000", "broker.id.generation.enable": "false"}
    assert parse_config(unlimited).config.node_id == 5000
    assert parse_config({"broker.id": "5000"}).config.node_id == 5000, "without ZooKeeper ids are not limited"
    assert parse_config({}).config.node_id == 1


def test_a_generated_id_stays_when_properties_change():
    config = parse_config({"zookeeper.connect": "z", "broker.id": "-1"}).config
    generated = config.with_generated_id(1001)
    assert (config.node_id, generated.node_id) == (-1, 1001)
    changed = generated.replace({"num.network.threads": "2"})
    assert (changed.node_id, changed.num_network_threads) == (1001, 2)
    changed.validate()
    assert BrokerConfig({}, base=generated).node_id == 1001


def test_kazoo_is_imported_only_by_members_of_a_cluster():
    """A start without ZooKeeper does not spend time on it."""
    code = "import sys, odradek.server.broker; print([name for name in sys.modules if name.startswith('kazoo')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
