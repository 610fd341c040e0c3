"""Declared properties, their values, and the properties of topics."""

import pytest

from odradek.log.config import LogConfig
from odradek.properties import (
    Kind,
    PropertyError,
    PropertySet,
    Synonym,
    UnknownPropertyError,
    UpdateMode,
    boolean,
    double,
    integer,
    long,
    password,
    short,
    string,
    string_list,
)


class Sample(PropertySet):
    flag = boolean("flag", False, doc="A switch.")
    small = short("small", 3, minimum=1, doc="A short.")
    size_bytes = integer("size.bytes", 10, minimum=1, maximum=20, doc="A size.")
    wait_ms = long("wait.ms", None, doc="A wait.", update_mode=UpdateMode.CLUSTER_WIDE)
    ratio = double("ratio", 0.5, minimum=0, maximum=1, doc="A ratio.")
    colour = string("colour", "red", choices=("red", "blue"), doc="A colour.")
    mood = string("mood", "calm", choices=("Calm", "Wild"), ignore_case=True, doc="A mood.")
    names = string_list("names", ("a",), unique=True, may_be_empty=False, doc="Names.")
    secret = password("secret", doc="A secret.")


def test_defaults_apply_until_a_value_is_given():
    config = Sample({})
    assert (config.flag, config.small, config.size_bytes, config.wait_ms) == (False, 3, 10, None)
    assert (config.ratio, config.colour, config.names, config.secret) == (0.5, "red", ("a",), None)
    assert config.explicit == {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("flag", " TRUE ", True),
        ("small", "32767", 32767),
        ("size.bytes", " +7 ", 7),
        ("wait.ms", "-9223372036854775808", -(1 << 63)),
        ("ratio", "1e-1", 0.1),
        ("colour", " blue", "blue"),
        ("mood", "WILD", "WILD"),
        ("names", " a , b ,c", ("a", "b", "c")),
        ("secret", "pass word", "pass word"),
    ],
)
def test_texts_are_parsed_as_kafka_does(name, text, value):
    config = Sample({name: text})
    assert config.value(name) == value
    assert config.explicit == {name: text}


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("flag", "yes", "expected true or false"),
        ("small", "32768", "expected a 16-bit integer"),
        ("small", "0", "must be at least 1"),
        ("size.bytes", "1_0", "expected a 32-bit integer"),
        ("size.bytes", "", "expected a 32-bit integer"),
        ("size.bytes", "2147483648", "expected a 32-bit integer"),
        ("size.bytes", "21", "must be between 1 and 20"),
        ("wait.ms", "9223372036854775808", "expected a 64-bit integer"),
        ("ratio", "half", "expected a number"),
        ("ratio", "nan", "must be between 0 and 1"),
        ("colour", "green", "must be one of: red, blue"),
        ("names", "a,b,a", "must not have duplicate entries"),
        ("names", "a,,b", "must not have empty entries"),
        ("names", "", "must not be empty"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(name, text, allowed):
    with pytest.raises(PropertyError) as caught:
        Sample({name: text})
    assert str(caught.value) == f"Invalid value {text} for configuration {name}: {allowed}"
    assert caught.value.name == name


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownPropertyError, match=r"Unknown configuration size\.byte, did you mean size\.bytes\?"):
        Sample({"size.byte": "1"})
    with pytest.raises(UnknownPropertyError) as caught:
        Sample({"nothing.like.it": "1"})
    assert caught.value.nearest is None


def test_replace_makes_a_new_set_and_none_removes_a_value():
    first = Sample({"size.bytes": "5"})
    second = first.replace({"size.bytes": "6", "flag": "true"})
    third = second.replace({"size.bytes": None})
    assert (first.size_bytes, second.size_bytes, third.size_bytes) == (5, 6, 10)
    assert third.explicit == {"flag": "true"}


def test_values_that_are_not_given_come_from_the_base():
    base = Sample({"size.bytes": "5", "colour": "blue"})
    config = Sample({"colour": "red"}, base=base)
    assert (config.size_bytes, config.colour) == (5, "red")
    assert config.replace({"colour": None}).colour == "blue"


def test_secrets_are_not_shown():
    config = Sample({"secret": "hunter2"})
    assert config.secret == "hunter2"
    assert "hunter2" not in repr(config)
    assert Sample.declared()["secret"].sensitive
    assert "hunter2" not in str(Sample.secret.error("hunter2", "must be longer"))


def test_values_are_plain_attributes_of_the_instance():
    config = Sample({"size.bytes": "5"})
    assert vars(config)["size_bytes"] == 5
    assert not hasattr(type(Sample.size_bytes), "__set__")


def test_the_text_of_a_value_is_parsed_to_the_value():
    config = Sample({"flag": "TRUE", "names": "a, b", "ratio": "0.25"})
    assert [config.text(name) for name in ("flag", "names", "ratio", "wait.ms")] == ["true", "a,b", "0.25", None]


def test_an_attribute_must_be_named_after_its_property():
    with pytest.raises((TypeError, RuntimeError)):

        class Wrong(PropertySet):
            another_name = boolean("flag", False, doc="A switch.")


def test_a_declaration_is_read_from_the_class():
    prop = Sample.declared()["wait.ms"]
    assert prop is Sample.wait_ms
    assert (prop.kind, prop.update_mode, prop.allowed) == (Kind.LONG, UpdateMode.CLUSTER_WIDE, "")
    assert list(Sample.declared())[:2] == ["flag", "small"]


def test_topic_properties_have_kafkas_names_and_synonyms():
    declared = LogConfig.declared()
    assert len(declared) == 34 + len({"flush.before.acks"})
    assert declared["retention.ms"].synonyms == (
        Synonym("log.retention.ms", 1),
        Synonym("log.retention.minutes", 60_000),
        Synonym("log.retention.hours", 3_600_000),
    )
    assert all(prop.doc for prop in declared.values())


@pytest.mark.parametrize("level", ["0", "10", "-2"])
def test_gzip_has_levels_1_to_9_and_its_own_default(level):
    assert LogConfig({"compression.gzip.level": "-1"}).compression_gzip_level == -1
    with pytest.raises(PropertyError, match="between 1 and 9, or -1"):
        LogConfig({"compression.gzip.level": level})


@pytest.mark.parametrize(
    ("text", "replicas"), [("", ()), ("*", ("*",)), ("0:1", ("0:1",)), ("0:1,1:2", ("0:1", "1:2"))]
)
def test_throttled_replicas_are_parsed(text, replicas):
    config = LogConfig({"leader.replication.throttled.replicas": text})
    assert config.leader_replication_throttled_replicas == replicas


@pytest.mark.parametrize("text", ["0", "a:b", "*,0:1", ":", "0:²", "0:99999999999"])
def test_malformed_throttled_replicas_are_refused(text):
    with pytest.raises(PropertyError, match="partition:broker"):
        LogConfig({"leader.replication.throttled.replicas": text})


def test_values_derived_from_topic_properties():
    config = LogConfig({"cleanup.policy": "compact", "max.compaction.lag.ms": "5"})
    assert (config.compacts, config.deletes, config.max_segment_ms) == (True, False, 5)
    assert LogConfig({"internal.segment.bytes": "1000"}).segment_limit_bytes == 1000
    assert LogConfig({"segment.bytes": "1048576"}).segment_limit_bytes == 1048576
    both = LogConfig({"cleanup.policy": "delete,compact"})
    assert both.compacts and both.deletes
    neither = LogConfig({"cleanup.policy": ""})
    assert not neither.compacts and not neither.deletes


def test_contradictory_topic_properties_are_refused():
    config = LogConfig({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    with pytest.raises(PropertyError, match=r"must be at most max\.compaction\.lag\.ms"):
        config.validate()
    with pytest.raises(PropertyError, match="no remote storage"):
        LogConfig({"remote.storage.enable": "true"}).validate()
