"""Guards of groups, coordinators and committed offsets."""

import pytest
from twisted.internet.defer import succeed

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseDeletableGroupResult,
)
from odradek.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
)
from odradek.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.protocol.messages.list_groups import (
    ListGroupsRequest,
    ListGroupsResponse,
    ListGroupsResponseListedGroup,
)
from odradek.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from odradek.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.server.authorization.tests.support import Guarded, cluster, group, transaction

REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("api", "request_class", "response", "right"),
    [
        ("Heartbeat", HeartbeatRequest, HeartbeatResponse(), "READ"),
        ("LeaveGroup", LeaveGroupRequest, LeaveGroupResponse(), "READ"),
        ("SyncGroup", SyncGroupRequest, SyncGroupResponse(), "READ"),
        ("OffsetCommit", OffsetCommitRequest, OffsetCommitResponse(), "READ"),
        ("OffsetDelete", OffsetDeleteRequest, OffsetDeleteResponse(), "DELETE"),
    ],
)
def test_a_request_for_one_group_needs_the_right_to_it(api, request_class, response, right):
    guarded = Guarded(api, 0, respond=lambda request: response)
    with pytest.raises(KafkaError) as refused:
        guarded.ask(request_class(group_id="open"))
    assert (refused.value.code, guarded.requests) == (REFUSED, [])
    guarded.authorizer.grant(group(right))
    assert guarded.ask(request_class(group_id="open")) == response


@pytest.mark.parametrize(("version", "protocol"), [(6, ""), (7, None)])
def test_a_refused_join_has_no_member_id(version, protocol):
    guarded = Guarded("JoinGroup", version, group("READ"), respond=lambda request: JoinGroupResponse())
    answer = guarded.ask(JoinGroupRequest(group_id="hidden", member_id="m"))
    assert (answer.error_code, answer.member_id, answer.protocol_name) == (REFUSED, "", protocol)
    assert guarded.ask(JoinGroupRequest(group_id="open", member_id="m")) == JoinGroupResponse()


def test_the_error_of_an_invalid_sync_precedes_the_check():
    guarded = Guarded("SyncGroup", 5)
    assert guarded.ask(SyncGroupRequest(group_id="hidden")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert guarded.authorizer.asked == []


def describe(request):
    return succeed(
        DescribeGroupsResponse(groups=[DescribeGroupsResponseDescribedGroup(group_id=one) for one in request.groups])
    )


@pytest.mark.parametrize(
    ("names", "passed", "codes"),
    [
        (["open"], [["open"]], [("open", 0)]),
        (["open", "hidden"], [["open"]], [("hidden", REFUSED), ("open", 0)]),
        (["hidden"], [], [("hidden", REFUSED)]),
    ],
)
def test_described_groups(names, passed, codes):
    guarded = Guarded("DescribeGroups", 6, group("DESCRIBE"), respond=describe)
    answer = guarded.ask(DescribeGroupsRequest(groups=names, include_authorized_operations=True))
    assert [(row.group_id, row.error_code) for row in answer.groups] == codes
    assert [request.groups for request in guarded.requests] == passed
    assert all(request.include_authorized_operations for request in guarded.requests)


def list_two(request):
    return ListGroupsResponse(groups=[ListGroupsResponseListedGroup(group_id=one) for one in ("hidden", "open")])


@pytest.mark.parametrize(
    ("right", "listed"), [(group("DESCRIBE"), ["open"]), (cluster("DESCRIBE"), ["hidden", "open"])]
)
def test_listed_groups_are_filtered_silently(right, listed):
    guarded = Guarded("ListGroups", 5, right, respond=list_two)
    assert [row.group_id for row in guarded.ask(ListGroupsRequest()).groups] == listed
    assert guarded.authorizer.audited == []


def delete(request):
    return DeleteGroupsResponse(
        results=[DeleteGroupsResponseDeletableGroupResult(group_id=one) for one in request.groups_names]
    )


@pytest.mark.parametrize(
    ("names", "passed", "codes"),
    [
        (["open"], [["open"]], [("open", 0)]),
        (["hidden", "open", "hidden"], [["open"]], [("open", 0), ("hidden", REFUSED)]),
        (["hidden"], [], [("hidden", REFUSED)]),
    ],
)
def test_deleted_groups(names, passed, codes):
    guarded = Guarded("DeleteGroups", 2, group("DELETE"), respond=delete)
    answer = guarded.ask(DeleteGroupsRequest(groups_names=names))
    assert [(row.group_id, row.error_code) for row in answer.results] == codes
    assert [request.groups_names for request in guarded.requests] == passed


def fetch_offsets(request):
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=one.group_id) for one in request.groups])


@pytest.mark.parametrize(
    ("names", "passed"),
    [(["open"], [["open"]]), (["hidden", "open", "hidden"], [["open"]]), (["hidden"], [])],
)
def test_fetched_offsets_keep_the_order_of_the_groups(names, passed):
    guarded = Guarded("OffsetFetch", 8, group("DESCRIBE"), respond=fetch_offsets)
    answer = guarded.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name) for name in names]))
    codes = {"open": ErrorCode.NONE, "hidden": REFUSED}
    assert [(row.group_id, row.error_code) for row in answer.groups] == [(name, codes[name]) for name in names]
    assert [[one.group_id for one in request.groups] for request in guarded.requests] == passed


def test_offsets_of_one_group_before_version_8():
    guarded = Guarded("OffsetFetch", 7, group("DESCRIBE"), respond=lambda request: OffsetFetchResponse())
    with pytest.raises(KafkaError) as refused:
        guarded.ask(OffsetFetchRequest(group_id="hidden"))
    assert refused.value.code == REFUSED
    assert guarded.ask(OffsetFetchRequest(group_id="open")) == OffsetFetchResponse()


def find(request):
    return FindCoordinatorResponse(
        coordinators=[FindCoordinatorResponseCoordinator(key=key, node_id=7) for key in request.coordinator_keys]
    )


@pytest.mark.parametrize(
    ("key_type", "right", "code"),
    [
        (0, group("DESCRIBE"), REFUSED),
        (1, transaction("DESCRIBE"), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
@pytest.mark.parametrize(
    ("keys", "passed"), [(["open"], [["open"]]), (["hidden", "open"], [["open"]]), (["hidden"], [])]
)
def test_coordinators(key_type, right, code, keys, passed):
    guarded = Guarded("FindCoordinator", 4, right, respond=find)
    answer = guarded.ask(FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type))
    expected = {"open": (7, ErrorCode.NONE), "hidden": (-1, code)}
    assert [(row.node_id, row.error_code) for row in answer.coordinators] == [expected[key] for key in keys]
    assert [request.coordinator_keys for request in guarded.requests] == passed


def test_a_coordinator_before_version_4():
    guarded = Guarded("FindCoordinator", 3, group("DESCRIBE"), respond=lambda request: "found")
    assert guarded.ask(FindCoordinatorRequest(key="open")) == "found"
    with pytest.raises(KafkaError) as refused:
        guarded.ask(FindCoordinatorRequest(key="hidden"))
    assert refused.value.code == REFUSED


def test_only_brokers_look_up_the_coordinators_of_share_groups():
    guarded = Guarded("FindCoordinator", 6, respond=lambda request: "found")
    request = FindCoordinatorRequest(coordinator_keys=["open"], key_type=2)
    with pytest.raises(KafkaError) as refused:
        guarded.ask(request)
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    guarded.authorizer.grant(cluster("CLUSTER_ACTION"))
    assert guarded.ask(request) == "found"
