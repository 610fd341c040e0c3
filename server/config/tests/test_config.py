"""Configuration of the broker: sources, checks, and defaults of topics."""

import pytest

from odradek.log.config import LogConfig
from odradek.properties import PropertyError, UpdateMode
from odradek.server.config import THEMES, BrokerConfig, InvalidConfigError, load_config, parse_config


def test_kafkas_sample_configuration_loads_with_one_warning():
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "socket.request.max.bytes": "104857600",
        "log.dirs": "/tmp/kraft-combined-logs",
        "num.partitions": "1",
        "num.recovery.threads.per.data.dir": "2",
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.retention.hours": "168",
        "log.segment.bytes": "1073741824",
        "log.retention.check.interval.ms": "300000",
    }
    config, warnings = parse_config(values)
    assert config.data_dirs == ("/tmp/kraft-combined-logs",)
    assert warnings == [
        "properties without effect, because one event loop does the work: num.io.threads, num.network.threads",
        "properties without effect, because there is no KRaft quorum: controller.listener.names, "
        "controller.quorum.bootstrap.servers, process.roles",
        "properties without effect, because this broker lacks the component: "
        "share.coordinator.state.topic.min.isr, share.coordinator.state.topic.replication.factor",
    ]


def test_an_unknown_property_gives_a_warning_with_the_nearest_name():
    config, warnings = parse_config({"log.retention.hour": "1", "my.own.thing": "x"})
    assert warnings == [
        "unknown property log.retention.hour is ignored, did you mean log.retention.hours?",
        "unknown property my.own.thing is ignored",
    ]
    assert config.explicit == {}


def test_a_misspelt_name_is_reported_with_an_invalid_value():
    with pytest.raises(InvalidConfigError) as refused:
        parse_config({"listners": "PLAINTEXT://:1", "num.partitions": "x", "log.retention.hours": "y"})
    assert [str(error).partition(" for ")[0] for error in refused.value.errors] == [
        "Invalid value x",
        "Invalid value y",
        "unknown property listners is ignored, did you mean listeners?",
    ]


def test_files_and_overrides(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nlog.dirs = /a , /b\n")
    config, warnings = load_config(str(path), ["num.partitions=5", "listeners=PLAINTEXT://h:1"])
    assert (config.num_partitions, config.data_dirs, warnings) == (5, ("/a", "/b"), [])
    with pytest.raises(ValueError, match=r"--override num\.partitions is not name=value"):
        load_config(None, ["num.partitions"])
    with pytest.raises(OSError):
        load_config(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("values", "node_id"),
    [({}, 1), ({"broker.id": "7"}, 7), ({"node.id": "3"}, 3), ({"node.id": "3", "broker.id": "3"}, 3)],
)
def test_node_id_and_its_older_name(values, node_id):
    assert parse_config(values).config.node_id == node_id


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"node.id": "1", "broker.id": "2"}, r"value 2 for configuration broker\.id: must be node\.id \(1\)"),
        ({"group.min.session.timeout.ms": "2000000"}, r"must be at least group\.min\.session\.timeout\.ms \(2000000\)"),
        ({"group.consumer.heartbeat.interval.ms": "20000"}, r"group\.consumer\.max\.heartbeat\.interval\.ms"),
        (
            {"group.consumer.max.heartbeat.interval.ms": "90000", "group.consumer.heartbeat.interval.ms": "45000"},
            r"must be less than group\.consumer\.session\.timeout\.ms",
        ),
        ({"replica.fetch.wait.max.ms": "40000"}, r"must be at least replica\.fetch\.wait\.max\.ms \(40000\)"),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}, "must be at least"),
        ({"log.retention.ms": "0"}, "must be at least 1, or -1"),
        ({"log.roll.ms": "0"}, "must be at least 1"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "must be more than 1048576"),
        ({"connections.max.idle.ms": "50"}, r"must be less than connections\.max\.idle\.ms"),
        ({"process.roles": "controller"}, "must include broker"),
        ({"process.roles": "observer"}, "must be any of: broker, controller"),
        ({"authorizer.class.name": "org.example.Authorizer"}, "must be .*StandardAuthorizer or kafka"),
        (
            {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:a;b"},
            "value User:a;b for configuration super.users: expected a string in format principalType:principalName but "
            "got b",
        ),
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: must be at least 1"),
        ({"log.dirs": "/a,/a"}, "must not have duplicate entries"),
        ({"log.dirs": ""}, "must not be empty"),
    ],
)
def test_bad_values_and_contradictions_are_refused(values, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_config(values)
    errors = getattr(caught.value, "errors", [caught.value])
    assert all(isinstance(error, PropertyError) and "\n" not in str(error) for error in errors)


def test_counts_of_internal_topics_fit_the_broker_unless_given():
    config = parse_config({"transaction.state.log.replication.factor": "3"}).config
    assert config.limit_by_brokers("offsets.topic.replication.factor", 1) == 1
    assert config.limit_by_brokers("offsets.topic.replication.factor", 2) == 2
    assert config.limit_by_brokers("offsets.topic.replication.factor", 5) == 3
    assert config.limit_by_brokers("transaction.state.log.replication.factor", 1) == 3
    assert config.limit_by_brokers("transaction.state.log.min.isr", 1) == 1


def test_topics_get_their_defaults_from_the_broker():
    values = {
        "log.retention.hours": "1",
        "log.roll.hours": "2",
        "log.roll.ms": "5",
        "message.max.bytes": "10",
        "log.cleanup.policy": "compact",
        "min.insync.replicas": "2",
    }
    topic = parse_config(values).config.topic_defaults
    assert (topic.retention_ms, topic.segment_ms, topic.max_message_bytes) == (3_600_000, 5, 10)
    assert (topic.compacts, topic.min_insync_replicas) == (True, 2)
    assert topic.explicit.keys() == {
        "retention.ms", "segment.ms", "max.message.bytes", "cleanup.policy", "min.insync.replicas",
    }  # fmt: skip
    assert LogConfig({"segment.ms": "7"}, base=topic).retention_ms == 3_600_000


@pytest.mark.parametrize("values", [{"log.retention.hours": "-1"}, {"log.retention.ms": "-5"}])
def test_any_negative_retention_is_no_limit(values):
    assert parse_config(values).config.topic_defaults.retention_ms == -1


def test_every_synonym_of_a_topic_property_is_declared_with_the_same_default():
    broker = BrokerConfig.declared()
    for prop in LogConfig.declared().values():
        for name, factor in prop.synonyms:
            default = broker[name].default
            assert default is None or default * factor == prop.default, name


def test_update_modes_are_kafkas():
    declared = BrokerConfig.declared()
    modes = {name: declared[name].update_mode for name in ("listeners", "log.retention.ms", "log.retention.hours")}
    assert list(modes.values()) == [UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE, UpdateMode.READ_ONLY]


def test_every_property_has_one_theme_and_a_description():
    declared = BrokerConfig.declared()
    assert sum(len(theme.declared()) for theme in THEMES) == len(declared)
    assert all(prop.doc.endswith(".") for prop in declared.values())
    for prop in declared.values():
        if prop.default is not None:
            text = prop.format(prop.default)
            assert text is not None
            assert prop.parse(text) == prop.default
