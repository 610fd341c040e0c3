"""Guards of CreateTopics, DeleteTopics, CreatePartitions and DescribeConfigs."""

from collections import Counter

import pytest
from twisted.internet.defer import succeed

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicConfigs,
    CreateTopicsResponseCreatableTopicResult,
)
from odradek.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResult,
)
from odradek.protocol.types import ZERO_UUID
from odradek.server.authorization.tests.support import IDS, Guarded, cluster, group, topic

E = ErrorCode
REFUSED = E.TOPIC_AUTHORIZATION_FAILED


def create(request):
    return succeed(
        CreateTopicsResponse(
            topics=[
                CreateTopicsResponseCreatableTopicResult(
                    name=one.name,
                    num_partitions=3,
                    replication_factor=1,
                    configs=[CreateTopicsResponseCreatableTopicConfigs(name="retention.ms")],
                )
                for one in request.topics
            ]
        )
    )


def creation(*names):
    return CreateTopicsRequest(
        topics=[CreateTopicsRequestCreatableTopic(name=name) for name in names], timeout_ms=7, validate_only=True
    )


@pytest.mark.parametrize(("names", "passed"), [(["open"], ["open"]), (["hidden", "open"], ["open"]), (["hidden"], [])])
def test_created_topics(names, passed):
    guarded = Guarded("CreateTopics", 7, topic("CREATE"), topic("DESCRIBE_CONFIGS"), respond=create)
    answer = guarded.ask(creation(*names))
    codes = {"open": E.NONE, "hidden": REFUSED}
    assert {row.name: row.error_code for row in answer.topics} == {name: codes[name] for name in names}
    assert {row.error_message for row in answer.topics if row.error_code} <= {"Authorization failed."}
    assert guarded.requests == [creation(*passed)]


def test_a_client_that_may_create_all_topics():
    guarded = Guarded("CreateTopics", 7, cluster("CREATE"), respond=create)
    assert [row.error_code for row in guarded.ask(creation("open", "hidden")).topics] == [0, 0]
    assert guarded.authorizer.audited == []


def test_configurations_of_created_topics_are_hidden():
    guarded = Guarded("CreateTopics", 7, cluster("CREATE"), topic("DESCRIBE_CONFIGS"), respond=create)
    shown, hidden = guarded.ask(creation("open", "hidden")).topics
    assert (shown.topic_config_error_code, shown.num_partitions, len(shown.configs)) == (0, 3, 1)
    assert (hidden.topic_config_error_code, hidden.num_partitions, hidden.replication_factor) == (REFUSED, -1, -1)
    assert hidden.configs == []
    assert guarded.authorizer.audited == []


def test_invalid_topics_of_a_creation_need_no_right():
    guarded = Guarded("CreateTopics", 7, respond=create)
    request = creation("hidden", "hidden", "__cluster_metadata", "other")
    guarded.ask(request)
    assert guarded.requests == [creation("hidden", "hidden", "__cluster_metadata")]


def delete(request):
    names = [*request.topic_names, *(one.name for one in request.topics)]
    return DeleteTopicsResponse(responses=[DeleteTopicsResponseDeletableTopicResult(name=name) for name in names])


def deletion(*keys):
    return DeleteTopicsRequest(
        topics=[
            DeleteTopicsRequestDeleteTopicState(topic_id=key)
            if isinstance(key, bytes)
            else DeleteTopicsRequestDeleteTopicState(name=key)
            for key in keys
        ],
        timeout_ms=7,
    )


def deleted_codes(answer):
    return Counter((row.name, row.topic_id, row.error_code) for row in answer.responses)


@pytest.mark.parametrize(
    ("allowed", "key", "row"),
    [
        ([], "hidden", ("hidden", ZERO_UUID, REFUSED)),
        ([], "absent", ("absent", ZERO_UUID, REFUSED)),
        ([topic("DELETE", "hidden")], "hidden", ("hidden", ZERO_UUID, REFUSED)),
        ([topic("DESCRIBE", "hidden")], "hidden", ("hidden", ZERO_UUID, REFUSED)),
        ([topic("DESCRIBE", "absent")], "absent", ("absent", ZERO_UUID, E.UNKNOWN_TOPIC_OR_PARTITION)),
        ([topic("DESCRIBE", "absent"), topic("DELETE", "absent")], "absent", None),
        ([topic("DESCRIBE", "hidden"), topic("DELETE", "hidden")], "hidden", None),
        ([], IDS["hidden"], (None, IDS["hidden"], REFUSED)),
        ([topic("DESCRIBE", "hidden")], IDS["hidden"], ("hidden", IDS["hidden"], REFUSED)),
        ([topic("DELETE", "hidden")], IDS["hidden"], None),
        ([], b"?" * 16, (None, b"?" * 16, E.UNKNOWN_TOPIC_ID)),
    ],
)
def test_a_deletion_discloses_only_what_the_client_may_describe(allowed, key, row):
    guarded = Guarded("DeleteTopics", 6, *allowed, respond=delete)
    answer = guarded.ask(deletion(key))
    if row is None:
        assert guarded.requests == [deletion(key)]
    else:
        assert deleted_codes(answer) == {row: 1}
        assert guarded.requests == [deletion()], "the handler determines whether topics may be deleted at all"


def test_a_topic_that_does_not_exist_yet_is_deleted_with_the_right_only():
    """The controller may have a topic that is not in this broker's metadata, or get it while it handles the request."""
    guarded = Guarded("DeleteTopics", 6, topic("DESCRIBE", "new"), respond=delete)
    guarded.ask(deletion("new", b"?" * 16))
    assert guarded.requests == [deletion()]
    assert guarded.authorizer.audited == [], "an attempt to delete a topic that does not exist is not one beyond rights"


def test_a_deletion_by_name_before_version_6():
    guarded = Guarded("DeleteTopics", 5, topic("DESCRIBE"), topic("DELETE"), respond=delete)
    answer = guarded.ask(DeleteTopicsRequest(topic_names=["open", "hidden"], timeout_ms=7))
    assert deleted_codes(answer) == {("open", ZERO_UUID, 0): 1, ("hidden", ZERO_UUID, REFUSED): 1}
    assert guarded.requests == [DeleteTopicsRequest(topic_names=["open"], timeout_ms=7)]


def test_invalid_rows_of_a_deletion_need_no_right():
    guarded = Guarded("DeleteTopics", 6, respond=delete)
    request = deletion("hidden", "hidden", IDS["hidden"], IDS["hidden"])
    request.topics += [
        DeleteTopicsRequestDeleteTopicState(),
        DeleteTopicsRequestDeleteTopicState(name="open", topic_id=IDS["open"]),
    ]
    guarded.ask(request)
    assert guarded.requests == [request]


def test_a_client_that_may_delete_all_topics():
    guarded = Guarded("DeleteTopics", 6, cluster("DELETE"), respond=delete)
    request = deletion("hidden", IDS["open"])
    guarded.ask(request)
    assert guarded.requests == [request]
    assert guarded.authorizer.audited == []


def grow(request):
    return CreatePartitionsResponse(
        results=[CreatePartitionsResponseCreatePartitionsTopicResult(name=one.name) for one in request.topics]
    )


def growth(*names):
    return CreatePartitionsRequest(
        topics=[CreatePartitionsRequestCreatePartitionsTopic(name=name, count=5) for name in names],
        timeout_ms=7,
        validate_only=True,
    )


@pytest.mark.parametrize(
    ("names", "passed"),
    [(["open"], ["open"]), (["hidden", "open"], ["open"]), (["hidden"], []), (["twice", "twice"], ["twice", "twice"])],
)
def test_added_partitions(names, passed):
    guarded = Guarded("CreatePartitions", 3, topic("ALTER"), respond=grow)
    answer = guarded.ask(growth(*names))
    refused = [row.name for row in answer.results if row.error_code == REFUSED]
    assert refused == [name for name in names if name not in passed]
    assert guarded.requests == [growth(*passed)]


def configs(*resources):
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequestDescribeConfigsResource(resource_type=kind, resource_name=name)
            for kind, name in resources
        ],
        include_synonyms=True,
        include_documentation=True,
    )


def describe(request):
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponseDescribeConfigsResult(
                resource_type=one.resource_type, resource_name=one.resource_name
            )
            for one in request.resources
        ]
    )


TOPIC, BROKER, LOGGER, METRICS, GROUP, UNKNOWN = (2, "open"), (4, "1"), (8, "1"), (16, "x"), (32, "open"), (77, "x")


@pytest.mark.parametrize(
    ("right", "shown"),
    [
        (topic("DESCRIBE_CONFIGS"), [TOPIC]),
        (group("DESCRIBE_CONFIGS"), [GROUP]),
        (cluster("DESCRIBE_CONFIGS"), [BROKER, LOGGER, METRICS]),
    ],
)
def test_described_configurations(right, shown):
    guarded = Guarded("DescribeConfigs", 4, right, respond=describe)
    resources = [TOPIC, BROKER, LOGGER, METRICS, GROUP, UNKNOWN]
    answer = guarded.ask(configs(*resources))
    errors = {2: REFUSED, 32: E.GROUP_AUTHORIZATION_FAILED}
    assert {(row.resource_type, row.resource_name): row.error_code for row in answer.results} == {
        one: 0 if one in (*shown, UNKNOWN) else errors.get(one[0], E.CLUSTER_AUTHORIZATION_FAILED) for one in resources
    }
    assert guarded.requests == [configs(*[one for one in resources if one in (*shown, UNKNOWN)])]


def test_no_configuration_left():
    guarded = Guarded("DescribeConfigs", 4, respond=describe)
    assert [row.error_code for row in guarded.ask(configs(TOPIC)).results] == [REFUSED]
    assert guarded.requests == []
