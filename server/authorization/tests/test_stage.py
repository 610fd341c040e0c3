"""The stage: which APIs it wraps, and APIs that need operations on the cluster."""

import gc
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from twisted.internet.defer import succeed

from odradek.protocol.access_control import Operation, ResourceType
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from odradek.server.apis import APIS, NO_NEEDS, PRODUCE_KEY, Api
from odradek.server.authorization.stage import GUARDS, HANDLER, AuthorizationStage, find_guard, list_guard_modules
from odradek.server.authorization.tests.support import Guarded, ListedRights, cluster, group, topic
from odradek.server.dispatch import BoundApi
from odradek.server.handlers.records.produce import produce
from odradek.server.request import RequestContext
from odradek.server.security.authorization.needs import READ_TOPIC
from odradek.server.security.authorization.operations import AUTHORIZATION_ERRORS
from odradek.server.security.authorization.rights import MAX_DECISIONS, Rights, make_authorization_error

OPEN_TO_ALL = {
    "ApiVersions",
    # The owner and the renewers of a token need no ACL.
    "ExpireDelegationToken",
    # As in Kafka; a push has to agree with a subscription.
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "RenewDelegationToken",
    "SaslAuthenticate",
    "SaslHandshake",
}


def test_each_api_declares_its_operations():
    assert [api.name for api in APIS.values() if api.needs is None] == []
    assert {api.name for api in APIS.values() if api.needs == NO_NEEDS} <= OPEN_TO_ALL


def test_each_guard_is_that_of_an_api_and_exists():
    assert set(GUARDS) <= {api.name for api in APIS.values()}
    for api in APIS.values():
        if api.needs:
            assert (find_guard(api) is None) == (GUARDS.get(api.name) == HANDLER)


def test_an_api_with_operations_on_other_resources_has_a_guard_of_its_own():
    for api in APIS.values():
        if api.needs and {need.resource_type for need in api.needs} != {ResourceType.CLUSTER}:
            assert api.name in GUARDS


def test_an_api_that_every_client_may_use_is_not_wrapped():
    handler: Any = object()
    api_versions = APIS[18]
    assert AuthorizationStage(ListedRights())(api_versions, 0, handler) is handler


def test_an_api_without_a_declaration_is_refused():
    called = []
    undeclared = Api(999, "New", 0, 0, "module:function")
    handle = AuthorizationStage(ListedRights())(undeclared, 0, called.append)
    with pytest.raises(KafkaError) as refused:
        handle(None, RequestContext("host", "PLAINTEXT"), object())
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert called == []


@pytest.mark.parametrize("api", [api for api in APIS.values() if api.needs and api.name not in GUARDS], ids=str)
def test_an_operation_on_the_cluster_is_checked(api):
    (need,) = api.needs
    guarded = Guarded(api.name, api.last_version, respond=lambda request: "done")
    with pytest.raises(KafkaError) as refused:
        guarded.ask("request")
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert guarded.requests == []
    guarded.authorizer.grant(cluster(need.operation.name))
    assert guarded.ask("request") == "done"


@pytest.mark.parametrize("right", ["ALTER", "CLUSTER_ACTION"])
def test_markers_need_one_of_two_operations(right):
    guarded = Guarded("WriteTxnMarkers", 1, respond=lambda request: WriteTxnMarkersResponse())
    with pytest.raises(KafkaError):
        guarded.ask(WriteTxnMarkersRequest())
    assert guarded.authorizer.audited == [cluster("CLUSTER_ACTION")]
    guarded.authorizer.grant(cluster(right))
    assert guarded.ask(WriteTxnMarkersRequest()) == WriteTxnMarkersResponse()


def test_produce_keeps_its_fast_path():
    bound = BoundApi(APIS[PRODUCE_KEY], 9, (AuthorizationStage(ListedRights()),))
    assert bound.handle is not produce
    assert bound.allows_fast_path


def test_rights_are_those_of_the_table():
    guarded = Guarded("AlterReplicaLogDirs", 1, topic("READ"), respond=lambda request: None)
    with pytest.raises(KafkaError):
        guarded.ask(AlterReplicaLogDirsRequest())
    assert guarded.authorizer.asked == [cluster("ALTER")]


def test_a_decision_is_made_once_for_a_request():
    authorizer = ListedRights()
    rights = Rights(authorizer, RequestContext("host", "PLAINTEXT"), (READ_TOPIC,))
    assert [rights.allows(ResourceType.TOPIC, "t") for _ in range(3)] == [False] * 3
    assert authorizer.audited == [topic("READ", "t")]


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_an_idle_connection_keeps_no_names_of_its_last_request(waits, is_refused):
    """A request may have 100,000 names, of 100 MB in total."""

    def respond(request):
        if is_refused:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return succeed(DescribeGroupsResponse()) if waits else DescribeGroupsResponse()

    size, count = 10_000, 100 if not waits else 1000
    guarded = Guarded("DescribeGroups", 5, group("DESCRIBE"), respond=respond)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    with suppress(KafkaError):
        guarded.ask(DescribeGroupsRequest(groups=["open", *(f"{number:0{size}}" for number in range(count))]))
    guarded.requests.clear()
    guarded.authorizer.asked.clear()
    guarded.authorizer.audited.clear()
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 10 * size


def test_a_request_with_many_names_keeps_a_limited_number_of_decisions():
    """To free them takes long."""
    rights = Rights(ListedRights(topic("READ")), RequestContext("host", "PLAINTEXT"), (READ_TOPIC,))
    for number in range(MAX_DECISIONS + 100):
        assert not rights.allows(ResourceType.TOPIC, f"t{number}")
    assert rights.allows(ResourceType.TOPIC, "open")
    assert len(rights._decisions) == MAX_DECISIONS


def test_another_operation_than_those_declared_cannot_be_asked_for():
    rights = Rights(ListedRights(), RequestContext("host", "PLAINTEXT"), (READ_TOPIC,))
    with pytest.raises(AssertionError, match="does not declare"):
        rights.allows(ResourceType.TOPIC, "t", Operation.WRITE)
    with pytest.raises(AssertionError, match="no operation on a GROUP"):
        rights.allows(ResourceType.GROUP, "g")


def test_the_modules_of_all_guards_are_listed_for_preloading():
    names = list_guard_modules(APIS.values())
    assert {find_guard(api).__module__ for api in APIS.values() if api.needs and find_guard(api)} == set(names)


@pytest.mark.parametrize("resource_type", AUTHORIZATION_ERRORS)
def test_the_error_of_each_type_of_resource_has_a_text(resource_type):
    error = make_authorization_error(resource_type)
    assert error.code == AUTHORIZATION_ERRORS[resource_type]
    assert error.message
