"""Requests about ACLs, valid and invalid, and the responses of a broker in a form that can be compared."""

from collections.abc import Callable
from typing import Any

from compat_tests.clients.common import wait_until
from odradek.protocol.messages.create_acls import CreateAclsRequest, CreateAclsRequestAclCreation
from odradek.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsRequestDeleteAclsFilter
from odradek.protocol.messages.describe_acls import DescribeAclsRequest
from odradek.protocol.schema import Message
from odradek.server.tests.wire import Wire

CREATION = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
ANY_FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip

Change = dict[str, Any]
CREATIONS: list[list[Change]] = [
    [{}], [{}],
    *([{field: code}] for field in ("operation", "resource_type", "resource_pattern_type", "permission_type")
      for code in (0, 1, 99)),
    [{"resource_pattern_type": 2}],
    *([{"principal": text}] for text in ("alice", "", ":", "User:", "Group:x", "User:*", "User:a:b", "User: a")),
    *([{"resource_name": text}] for text in ("", "a b:c\n", "n" * 300, ".", "..", "*", "%2F")),
    *([{"host": text}] for text in ("", "example.com", "10.0.0.0/8", "::1")),
    [{"resource_type": 4, "resource_name": "x"}], [{"resource_type": 4, "resource_name": "kafka-cluster"}],
    [{"resource_type": 4, "resource_name": "kafka", "resource_pattern_type": 4}],
    [{"resource_type": 4, "resource_name": "", "operation": 99}],
    [{"resource_type": 3, "resource_name": "a/b"}], [{"resource_type": 3, "operation": 5}],
    [{"resource_type": 5, "operation": 15}], [{"resource_type": 6, "operation": 8}],
    [{"resource_type": 7, "resource_name": "User:x", "operation": 13}], [{"resource_type": 7, "operation": 3}],
    [{"resource_name": "*", "resource_pattern_type": 4}], [{"permission_type": 2}],
    [{"resource_name": "m1"}, {"resource_name": ""}, {"principal": "x"}, {"resource_name": "m2"}, {}],
    [{"resource_name": "m3"}, {"operation": 1}], [{"resource_name": "m4"}, {"operation": 99}],
    [{"operation": 99, "resource_type": 99}], [{"operation": 99, "permission_type": 99}],
    [{"principal": "x", "permission_type": 99}], [{"resource_name": "", "principal": "x"}], [],
]  # fmt: skip
"""Requests of CreateAcls: each ACL is CREATION with these changes."""

FILTERS: list[Change] = [
    {}, {"pattern_type_filter": 3}, {"pattern_type_filter": 4}, {"pattern_type_filter": 2},
    {"resource_name_filter": "t"}, {"resource_name_filter": ""}, {"resource_type_filter": 2},
    *({"pattern_type_filter": 2, "resource_name_filter": name} for name in ("t", "*", "m1", "zzz")),
    {"pattern_type_filter": 2, "resource_name_filter": "t", "resource_type_filter": 2},
    {"principal_filter": "Group:x"}, {"principal_filter": "x"}, {"host_filter": ""}, {"host_filter": "*"},
    {"operation": 8}, {"permission_type": 2},
    *({field: code} for field in ("operation", "resource_type_filter", "pattern_type_filter", "permission_type")
      for code in (0, 99)),
]  # fmt: skip
"""Filters: ANY_FILTER with these changes."""

LAST = {"resource_name": "last"}
"""The change that makes the ACL of the last creation."""


def answer_all(port: int, version: int) -> dict[str, Any]:
    """Send all requests; return by request what the broker answered. All ACLs are deleted at the end."""
    answers: dict[str, Any] = {}

    def ask(label: str, request: Message, describe: Callable[[Any], Any]) -> None:
        with Wire(port) as wire:
            try:
                answers[label] = describe(wire.ask(request, version))
            except ConnectionError:
                answers[label] = "the connection was closed"

    for number, changes in enumerate([*CREATIONS, [LAST]]):
        creations = [CreateAclsRequestAclCreation(**{**CREATION, **change}) for change in changes]
        request = CreateAclsRequest(creations=creations)
        ask(f"create {number} {changes}", request, lambda r: [(one.error_code, one.error_message) for one in r.results])
    _await_last(port, version)
    for filters in FILTERS:
        ask(f"describe {filters}", DescribeAclsRequest(**{**ANY_FILTER, **filters}), _list_described)
    requests: list[list[Change]] = [
        [], [FILTERS[-1]], [{"resource_name_filter": "m1"}, {"operation": 99}, {"resource_name_filter": "m1"}],
    ]  # fmt: skip
    for number, deleted in enumerate([*requests, *([one] for one in reversed(FILTERS))]):
        made = [DeleteAclsRequestDeleteAclsFilter(**{**ANY_FILTER, **change}) for change in deleted]
        ask(f"delete {number} {deleted}", DeleteAclsRequest(filters=made), _list_deleted)
    return answers


def _await_last(port: int, version: int) -> None:
    """Wait until the broker has all ACLs, which Apache Kafka acknowledges before, or has no authorizer."""
    selected = DescribeAclsRequest(**{**ANY_FILTER, "pattern_type_filter": 3, "resource_name_filter": "last"})
    with Wire(port) as wire:

        def has_last() -> bool:
            answer = wire.ask(selected, version)
            return answer.error_code != 0 or bool(answer.resources)

        wait_until(has_last, what="the last ACL")


def _list_described(response: Any) -> Any:
    resources = [
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.host, acl.operation,
         acl.permission_type)
        for one in response.resources
        for acl in one.acls
    ]  # fmt: skip
    return response.error_code, response.error_message, sorted(resources)


def _list_deleted(response: Any) -> Any:
    return [
        (
            result.error_code,
            result.error_message,
            sorted(
                (one.error_code, one.error_message, one.resource_type, one.resource_name, one.pattern_type,
                 one.principal, one.host, one.operation, one.permission_type)
                for one in result.matching_acls
            ),
        )
        for result in response.filter_results
    ]  # fmt: skip
