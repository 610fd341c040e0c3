"""Rights in AlterConfigs and IncrementalAlterConfigs."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.properties import PropertyError
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.tests.support import Cluster
from odradek.server.apis import APIS
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.authorization.tests.support import ListedRights, cluster, topic
from odradek.server.handlers.topics.configs import alter_configs, incremental_alter_configs
from odradek.server.request import RequestContext

E = ErrorCode
TOPIC_REFUSED, CLUSTER_REFUSED = E.TOPIC_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED
OPEN, HIDDEN, ABSENT = ((2, name, "retention.ms", "1000") for name in ("open", "hidden", "absent"))
LOGGERS = (8, "1", "kafka.authorizer.logger", "ERROR")
BROKER, INVALID_BROKER = (4, "", "log.retention.ms", "1000"), (4, "", "num.partitions", "2")
UNKNOWN_NAME = (2, "hidden", "nonsense", "1")


def replace(resources):
    return AlterConfigsRequest(
        resources=[
            AlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterConfigsRequestAlterableConfig(name=key, value=value)],
            )
            for kind, name, key, value in resources
        ]
    )


def increment(resources):
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[IncrementalAlterConfigsRequestAlterableConfig(name=key, value=value)],
            )
            for kind, name, key, value in resources
        ]
    )


class World:
    def __init__(self):
        self.rights = ListedRights()
        self.cluster = Cluster()
        for name in ("open", "hidden"):
            create(self.cluster, new(name))

    def alter(self, api, *resources):
        """Return the code of each resource."""
        key, handler, make = api
        services = SimpleNamespace(config_admin=self.cluster.config_admin)
        context = RequestContext("host", "PLAINTEXT")
        handle = AuthorizationStage(self.rights)(APIS[key], 1, handler)
        answers: list[Any] = []
        handle(services, context, make(resources)).addBoth(answers.append)
        return [row.error_code for row in answers[0].responses]


@pytest.fixture
def world():
    return World()


INCREMENT = (44, incremental_alter_configs, increment)
APIS_THAT_ALTER = pytest.mark.parametrize(
    "api", [(33, alter_configs, replace), INCREMENT], ids=["replace", "increment"]
)


@APIS_THAT_ALTER
def test_nothing_is_changed_without_rights(world, api):
    codes = world.alter(api, OPEN, HIDDEN, ABSENT, BROKER)
    assert codes == [TOPIC_REFUSED, TOPIC_REFUSED, TOPIC_REFUSED, CLUSTER_REFUSED]
    assert world.cluster.image.topic_configs.get("open", {}) == {}
    assert world.cluster.image.broker_configs.get(None, {}) == {}


@APIS_THAT_ALTER
def test_each_resource_needs_its_own_right(world, api):
    world.rights.grant(topic("ALTER_CONFIGS"))
    assert world.alter(api, OPEN, HIDDEN, BROKER) == [E.NONE, TOPIC_REFUSED, CLUSTER_REFUSED]
    assert world.cluster.image.topic_configs["open"] == {"retention.ms": "1000"}
    world.rights.grant(cluster("ALTER_CONFIGS"))
    assert world.alter(api, HIDDEN, BROKER) == [TOPIC_REFUSED, E.NONE]
    assert world.cluster.image.broker_configs[None] == {"log.retention.ms": "1000"}


@APIS_THAT_ALTER
def test_the_error_of_a_topics_configuration_follows_that_of_a_missing_right(world, api):
    assert world.alter(api, UNKNOWN_NAME) == [TOPIC_REFUSED]


@APIS_THAT_ALTER
def test_the_errors_of_a_request_and_of_a_brokers_configuration_precede_that_of_a_missing_right(world, api):
    assert world.alter(api, HIDDEN, HIDDEN, INVALID_BROKER) == [E.INVALID_REQUEST] * 3
    assert world.rights.asked == []


@APIS_THAT_ALTER
def test_a_client_without_rights_cannot_make_the_broker_check_a_change(world, api, monkeypatch):
    def validate_change(self, current):
        raise PropertyError("a.store", "a file of the client", "is read")

    monkeypatch.setattr(type(world.cluster.configs.current), "validate_change", validate_change)
    assert world.alter(api, BROKER) == [CLUSTER_REFUSED]
    world.rights.grant(cluster("ALTER_CONFIGS"))
    assert world.alter(api, BROKER) == [E.INVALID_REQUEST]


def test_levels_of_loggers_need_the_right_of_broker_configurations(world):
    changed = logging.getLogger("odradek.authorizer")
    assert world.alter(INCREMENT, LOGGERS) == [CLUSTER_REFUSED]
    assert changed.level == logging.NOTSET
    world.rights.grant(cluster("ALTER_CONFIGS"))
    try:
        assert world.alter(INCREMENT, LOGGERS) == [E.NONE]
        assert changed.level == logging.ERROR
    finally:
        changed.setLevel(logging.NOTSET)
