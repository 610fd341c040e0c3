"""DescribeAcls 1-3, CreateAcls 1-3, DeleteAcls 1-3: access control lists (KIP-11, KIP-290).

Kafka refuses codes in three ways: 0 is malformed and closes the connection, ANY in an ACL to be created fails the whole
request, and a number without a meaning is an error of its row. Sources: Kafka's CreateAclsRequest, AclApis and
AclControlManager.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_acls import (
    CreateAclsRequest,
    CreateAclsRequestAclCreation,
    CreateAclsResponse,
    CreateAclsResponseAclCreationResult,
)
from odradek.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsRequestDeleteAclsFilter,
    DeleteAclsResponse,
    DeleteAclsResponseDeleteAclsFilterResult,
    DeleteAclsResponseDeleteAclsMatchingAcl,
)
from odradek.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeAclsResponseAclDescription,
    DescribeAclsResponseDescribeAclsResource,
)
from odradek.protocol.schema import rows
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, AclFilter, ResourcePattern
from odradek.server.request import CloseConnection
from odradek.server.security.authorization.operations import CLUSTER_NAME
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.acl_changes import AclChanges, Deletion
    from odradek.server.request import RequestContext
    from odradek.server.work.slices import Slices

_NO_MESSAGE: Final = ""
"""Kafka's error message of a success, in some responses."""


class AclServices(Protocol):
    """The parts of a broker that requests about ACLs need."""

    acls: "AclChanges | None"
    slices: "Slices"


def describe_acls(
    services: AclServices, context: "RequestContext", request: DescribeAclsRequest
) -> "Deferred[DescribeAclsResponse]":
    """Return the ACLs that the filter selects.

    Raises KafkaError SECURITY_DISABLED without an authorizer, CloseConnection for a code 0.
    """
    _refuse_unknown(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    if services.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    return services.slices.run(_describe(services.acls, _make_filter(request)), SMALL_REQUEST_STEPS)


def _describe(acls: "AclChanges", selection: AclFilter) -> Generator[None, None, DescribeAclsResponse]:
    resources = []
    number = 0
    every = selection.named_patterns()
    # The table changes while this suspends.
    for pattern in list(acls.cache.acls) if every is None else every:
        number += 1
        if number % ROWS_PER_STEP == 0:
            yield
        entries = acls.cache.acls.get(pattern)
        if entries is None or not selection.matches_pattern(pattern):
            continue
        descriptions = []
        for entry in entries:
            number += 1
            if number % ROWS_PER_STEP == 0:
                yield
            if selection.matches_entry(entry):
                descriptions.append(entry)
        if descriptions:
            resources.append((pattern, descriptions))
    return DescribeAclsResponse(error_message=_NO_MESSAGE, resources=rows(_make_resource, resources))


def _make_resource(
    described: tuple[ResourcePattern, list[AclEntry]],
) -> DescribeAclsResponseDescribeAclsResource:
    pattern, entries = described
    return DescribeAclsResponseDescribeAclsResource(
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        acls=rows(
            lambda entry: DescribeAclsResponseAclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            ),
            entries,
        ),
    )


def describe_acls_error(request: DescribeAclsRequest, version: int, error: KafkaError) -> DescribeAclsResponse:
    """Return `error` and no ACLs."""
    return DescribeAclsResponse(error_code=error.code, error_message=error.message)


def create_acls(
    services: AclServices, context: "RequestContext", request: CreateAclsRequest
) -> "Deferred[CreateAclsResponse]":
    """Add ACLs. An ACL that exists is a success.

    Raises KafkaError SECURITY_DISABLED without an authorizer, UNKNOWN_SERVER_ERROR for a code ANY; CloseConnection for
    a code 0.
    """
    return carry_through(_create(services.acls, services.slices, request))


class _Checked(NamedTuple):
    """ACLs to be created.

    results: of each row, its pattern or its error
    added: the entries of the valid rows, by pattern
    """

    results: list[ResourcePattern | KafkaError]
    added: dict[ResourcePattern, set[AclEntry]]


async def _create(acls: "AclChanges | None", slices: "Slices", request: CreateAclsRequest) -> CreateAclsResponse:
    await slices.run(_refuse_malformed_creations(request), SMALL_REQUEST_STEPS)
    if acls is None:
        raise _no_authorizer()
    checked = await slices.run(_check_creations(acls, request), SMALL_REQUEST_STEPS)
    errors = await acls.create(checked.added)

    def make_result(result: ResourcePattern | KafkaError) -> CreateAclsResponseAclCreationResult:
        error = errors.get(result) if isinstance(result, ResourcePattern) else result
        if error is None:
            return CreateAclsResponseAclCreationResult(error_message=_NO_MESSAGE)
        return CreateAclsResponseAclCreationResult(error_code=error.code, error_message=error.message)

    return CreateAclsResponse(results=rows(make_result, checked.results))


def _refuse_malformed_creations(request: CreateAclsRequest) -> Generator[None, None, None]:
    for number, row in enumerate(request.creations, 1):
        if number % ROWS_PER_STEP == 0:
            yield
        _refuse_unknown(row.resource_type, row.resource_pattern_type, row.operation, row.permission_type)


def _check_creations(acls: "AclChanges", request: CreateAclsRequest) -> Generator[None, None, _Checked]:
    checked = _Checked([], {})
    has_any = False
    for number, row in enumerate(request.creations, 1):
        if number % ROWS_PER_STEP == 0:
            yield
        has_any |= (
            row.resource_type == ResourceType.ANY
            or row.resource_pattern_type in (PatternType.ANY, PatternType.MATCH)
            or row.operation == Operation.ANY
            or row.permission_type == Permission.ANY
        )
        try:
            pattern, entry = _make_binding(row)
            acls.check_name(pattern.name)
        except KafkaError as error:
            checked.results.append(error)
        else:
            checked.results.append(pattern)
            checked.added.setdefault(pattern, set()).add(entry)
    if has_any:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return checked


def _make_binding(row: CreateAclsRequestAclCreation) -> AclBinding:
    """Return a valid ACL. Raises KafkaError INVALID_REQUEST, with the message of the check that Kafka makes first."""
    resource_type = ResourceType.from_code(row.resource_type)
    pattern_type = PatternType.from_code(row.resource_pattern_type)
    operation = Operation.from_code(row.operation)
    permission = Permission.from_code(row.permission_type)
    message = None
    if resource_type is ResourceType.CLUSTER and row.resource_name != CLUSTER_NAME:
        message = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not row.resource_name:
        message = "Invalid empty resource name"
    elif resource_type is ResourceType.UNKNOWN:
        message = "Invalid resourceType UNKNOWN"
    elif pattern_type is PatternType.UNKNOWN:
        message = "Invalid patternType UNKNOWN"
    elif operation is Operation.UNKNOWN:
        message = "Invalid operation UNKNOWN"
    elif permission is Permission.UNKNOWN:
        message = "Invalid permissionType UNKNOWN"
    elif ":" not in row.principal:
        message = (
            f"Could not parse principal from `{row.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    if message is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    pattern = ResourcePattern(resource_type, row.resource_name, pattern_type)
    return AclBinding(pattern, AclEntry(row.principal, row.host, operation, permission))


def create_acls_error(request: CreateAclsRequest, version: int, error: KafkaError) -> CreateAclsResponse:
    """Return `error` for every ACL."""
    return CreateAclsResponse(
        results=rows(
            lambda _: CreateAclsResponseAclCreationResult(error_code=error.code, error_message=error.message),
            request.creations,
        )
    )


def delete_acls(
    services: AclServices, context: "RequestContext", request: DeleteAclsRequest
) -> "Deferred[DeleteAclsResponse]":
    """Delete the ACLs that any of the filters selects.

    Raises KafkaError SECURITY_DISABLED without an authorizer, CloseConnection for a code 0.
    """
    return carry_through(_delete(services.acls, services.slices, request))


async def _delete(acls: "AclChanges | None", slices: "Slices", request: DeleteAclsRequest) -> DeleteAclsResponse:
    checked = await slices.run(_check_filters(request), SMALL_REQUEST_STEPS)
    if acls is None:
        raise _no_authorizer()
    deletions = iter(await acls.delete([one for one in checked if isinstance(one, AclFilter)]))
    results = await slices.run(_list_deletions(checked, deletions), SMALL_REQUEST_STEPS)
    return DeleteAclsResponse(filter_results=rows(_make_filter_result, results))


def _list_deletions(
    checked: list[AclFilter | KafkaError], deletions: "Iterator[Deletion]"
) -> "Generator[None, None, list[Deletion | KafkaError]]":
    results: list[Deletion | KafkaError] = []
    for number, one in enumerate(checked, 1):
        if number % ROWS_PER_STEP == 0:
            yield
        results.append(next(deletions) if isinstance(one, AclFilter) else one)
    return results


def _check_filters(request: DeleteAclsRequest) -> Generator[None, None, list[AclFilter | KafkaError]]:
    checked: list[AclFilter | KafkaError] = []
    for number, row in enumerate(request.filters, 1):
        if number % ROWS_PER_STEP == 0:
            yield
        _refuse_unknown(row.resource_type_filter, row.pattern_type_filter, row.operation, row.permission_type)
        one = _make_filter(row)
        if ResourceType.UNKNOWN is one.resource_type or PatternType.UNKNOWN is one.pattern_type:
            checked.append(KafkaError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter."))
        elif Operation.UNKNOWN is one.operation or Permission.UNKNOWN is one.permission:
            checked.append(KafkaError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter."))
        else:
            checked.append(one)
    return checked


def _make_filter_result(result: "Deletion | KafkaError") -> DeleteAclsResponseDeleteAclsFilterResult:
    if isinstance(result, KafkaError):
        return DeleteAclsResponseDeleteAclsFilterResult(error_code=result.code, error_message=result.message)
    error = result.error
    return DeleteAclsResponseDeleteAclsFilterResult(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        matching_acls=rows(_make_matching_acl, result.deleted),
    )


def _make_matching_acl(binding: AclBinding) -> DeleteAclsResponseDeleteAclsMatchingAcl:
    pattern, entry = binding
    return DeleteAclsResponseDeleteAclsMatchingAcl(
        error_message=None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def delete_acls_error(request: DeleteAclsRequest, version: int, error: KafkaError) -> DeleteAclsResponse:
    """Return `error` for every filter."""
    return DeleteAclsResponse(
        filter_results=rows(
            lambda _: DeleteAclsResponseDeleteAclsFilterResult(error_code=error.code, error_message=error.message),
            request.filters,
        )
    )


def _make_filter(row: DescribeAclsRequest | DeleteAclsRequestDeleteAclsFilter) -> AclFilter:
    return AclFilter(
        ResourceType.from_code(row.resource_type_filter),
        row.resource_name_filter,
        PatternType.from_code(row.pattern_type_filter),
        row.principal_filter,
        row.host_filter,
        Operation.from_code(row.operation),
        Permission.from_code(row.permission_type),
    )


def _no_authorizer() -> KafkaError:
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def _refuse_unknown(*codes: int) -> None:
    """Raise CloseConnection if a code is 0, as for a malformed request."""
    if not all(codes):
        raise CloseConnection(
            "malformed request: an ACL or a filter has an unknown resource type, pattern type, operation or permission"
        )
