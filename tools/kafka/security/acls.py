"""ACLs of a cluster."""

from collections.abc import Collection, Mapping, Sequence

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.messages.create_acls import CreateAclsRequest, CreateAclsRequestAclCreation, CreateAclsResponse
from odradek.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsRequestDeleteAclsFilter,
    DeleteAclsResponse,
)
from odradek.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, AclFilter, ResourcePattern
from odradek.tools.kafka.cluster import Cluster, check


def create_acls(cluster: Cluster, added: Mapping[ResourcePattern, Collection[AclEntry]]) -> None:
    """Add ACLs. Raises RequestError."""
    creations = [
        CreateAclsRequestAclCreation(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.pattern_type,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for pattern, entries in added.items()
        for entry in sorted(entries)
    ]
    for result in cluster.ask_controller(CreateAclsRequest(creations=creations), CreateAclsResponse).results:
        check(result.error_code, result.error_message)


def find_acls(cluster: Cluster, filters: Sequence[AclFilter]) -> list[AclBinding]:
    """Return the ACLs that any of the filters selects, sorted. Raises RequestError."""
    found = set()
    for one in filters:
        request = DescribeAclsRequest(
            resource_type_filter=one.resource_type,
            resource_name_filter=one.name,
            pattern_type_filter=one.pattern_type,
            principal_filter=one.principal,
            host_filter=one.host,
            operation=one.operation,
            permission_type=one.permission,
        )
        response = cluster.ask(request, DescribeAclsResponse)
        check(response.error_code, response.error_message)
        for resource in response.resources:
            pattern = ResourcePattern(
                ResourceType.from_code(resource.resource_type),
                resource.resource_name,
                PatternType.from_code(resource.pattern_type),
            )
            for acl in resource.acls:
                operation, permission = Operation.from_code(acl.operation), Permission.from_code(acl.permission_type)
                found.add(AclBinding(pattern, AclEntry(acl.principal, acl.host, operation, permission)))
    return sorted(found)


def delete_acls(cluster: Cluster, filters: Sequence[AclFilter]) -> None:
    """Remove the ACLs that any of the filters selects. Raises RequestError."""
    asked = [
        DeleteAclsRequestDeleteAclsFilter(
            resource_type_filter=one.resource_type,
            resource_name_filter=one.name,
            pattern_type_filter=one.pattern_type,
            principal_filter=one.principal,
            host_filter=one.host,
            operation=one.operation,
            permission_type=one.permission,
        )
        for one in filters
    ]
    for result in cluster.ask_controller(DeleteAclsRequest(filters=asked), DeleteAclsResponse).filter_results:
        check(result.error_code, result.error_message)
        for acl in result.matching_acls:
            check(acl.error_code, acl.error_message)
