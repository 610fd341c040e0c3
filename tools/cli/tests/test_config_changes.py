"""Previews of changes of configurations."""

import pytest

from odradek.tools.cli.cluster.config_changes import preview
from odradek.tools.cli.session import CommandError
from odradek.tools.kafka.topics.config_changes import DELETE, SET
from odradek.tools.kafka.topics.configs import BROKER, TOPIC, ConfigValue

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


def described(*names):
    return [ConfigValue(name, "1", "broker", None, True, False, False, None) for name in names]


@pytest.mark.parametrize(
    ("resource", "set_before", "name"),
    [((BROKER, ""), "log.retention.ms", "log.retention.bytes"), ((BROKER, "1"), LEADER_RATE, FOLLOWER_RATE)],
)
def test_a_name_that_is_described_only_with_a_value_can_be_changed(resource, set_before, name):
    [(_, changed, before, after)] = preview(resource, described(set_before), [(name, SET, "2")])
    assert (changed, before, after) == (name, None, "2")
    assert preview(resource, described(set_before), [(name, DELETE, None)])


@pytest.mark.parametrize("resource", [(TOPIC, "t"), (BROKER, "1")])
def test_a_misspelt_name_is_refused(resource):
    with pytest.raises(CommandError, match=r"has no configuration retention\.m; did you mean retention\.ms"):
        preview(resource, described("retention.ms"), [("retention.m", SET, "2")])


@pytest.mark.parametrize("name", ["listener.name.a.ssl.keystore.password", "listener.name.a.plain.sasl.jaas.config"])
def test_a_secret_without_a_value_before_is_not_shown(name):
    [row] = preview((BROKER, "1"), [], [(name, SET, "topsecret")])
    assert row == ("1", name, None, "[hidden]")
