"""The ACLs and filters that the options of `odradek acl` stand for. The options are those of Kafka's kafka-acls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata.acls.bindings import WILDCARD, AclEntry, AclFilter, ResourcePattern
from odradek.server.security.authorization.operations import CLUSTER_NAME, SUPPORTED_OPERATIONS
from odradek.server.security.principal import parse_principal
from odradek.server.store_tools.errors import UsageError

_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
"""The resource types of the options that name resources."""

_PRODUCER: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}
"""The operations that --producer and --consumer stand for."""


@dataclass
class AclOptions:
    """Options of a command."""

    topic: list[str] = field(default_factory=list)
    group: list[str] = field(default_factory=list)
    transactional_id: list[str] = field(default_factory=list)
    delegation_token: list[str] = field(default_factory=list)
    user_principal: list[str] = field(default_factory=list)
    cluster: bool = False
    resource_pattern_type: PatternType = PatternType.LITERAL
    allow_principal: list[str] = field(default_factory=list)
    allow_host: list[str] = field(default_factory=list)
    deny_principal: list[str] = field(default_factory=list)
    deny_host: list[str] = field(default_factory=list)
    operation: list[Operation] = field(default_factory=list)
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False


def make_creations(options: AclOptions) -> dict[ResourcePattern, set[AclEntry]]:
    """Return the ACLs to create, by resource. Raises UsageError."""
    if options.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError("--resource-pattern-type must be literal or prefixed to add ACLs")
    rules = make_rules(options)
    if not all(rules.values()):
        raise UsageError("specify --allow-principal or --deny-principal")
    return {
        ResourcePattern(one.resource_type, one.name or "", one.pattern_type): entries for one, entries in rules.items()
    }


def make_deletions(options: AclOptions) -> list[AclFilter]:
    """Return the filters of the ACLs to delete; all of the resources if there is no principal. Raises UsageError."""
    filters: list[AclFilter] = []
    for one, entries in make_rules(options).items():
        filters += [
            one._replace(principal=who, host=host, operation=operation, permission=permission)
            for who, host, operation, permission in sorted(entries)
        ] or [one]
    return filters


def make_rules(options: AclOptions) -> dict[AclFilter, set[AclEntry]]:
    """Return the entries for each resource; none if the command has no principal. Raises UsageError."""
    has_role = options.producer or options.consumer
    if has_role and (options.operation or options.deny_principal or options.deny_host):
        raise UsageError("--producer and --consumer exclude --operation, --deny-principal and --deny-host")
    if options.idempotent and not options.producer:
        raise UsageError("--idempotent requires --producer")
    if has_role and not options.topic:
        raise UsageError("--producer and --consumer require --topic")
    if options.consumer and not options.group:
        raise UsageError("--consumer requires --group")
    for permission in ("allow", "deny"):
        if getattr(options, f"{permission}_host") and not getattr(options, f"{permission}_principal"):
            raise UsageError(f"--{permission}-host requires --{permission}-principal")
    filters = list(make_filters(options))
    if not filters:
        raise UsageError("specify a resource, such as --topic NAME or --cluster")
    rules: dict[AclFilter, set[AclEntry]] = {}
    for one in filters:
        operations = _find_operations(options, one.resource_type) if has_role else options.operation or [Operation.ALL]
        if has_role and not operations:
            continue
        check_operations(one.resource_type, operations)
        rules.setdefault(one, set()).update(_make_entries(options, operations))
    return rules


def _find_operations(options: AclOptions, resource_type: ResourceType) -> list[Operation]:
    """Return the operations on a resource that the roles of the command need."""
    operations: list[Operation] = []
    if options.producer:
        operations += _PRODUCER.get(resource_type, ())
        if options.idempotent and resource_type is ResourceType.CLUSTER:
            operations.append(Operation.IDEMPOTENT_WRITE)
    if options.consumer:
        operations += _CONSUMER.get(resource_type, ())
    return operations


def _make_entries(options: AclOptions, operations: Iterable[Operation]) -> Iterator[AclEntry]:
    for permission in (Permission.ALLOW, Permission.DENY):
        name = permission.name.lower()
        for principal in getattr(options, f"{name}_principal"):
            check_principal(principal)
            for host in getattr(options, f"{name}_host") or [WILDCARD]:
                for operation in operations:
                    yield AclEntry(principal.strip(), host.strip(), operation, permission)


def make_filters(options: AclOptions) -> Iterator[AclFilter]:
    """Iterate over the resources of the command."""
    for option, resource_type in _RESOURCES.items():
        for name in getattr(options, option):
            if not name:
                raise UsageError(f"--{option.replace('_', '-')} must not be empty")
            yield AclFilter(resource_type, name, options.resource_pattern_type)
    if options.cluster or options.idempotent:
        yield AclFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)


def check_operations(resource_type: ResourceType, operations: Iterable[Operation]) -> None:
    """Raise UsageError for an operation that a type of resource has not."""
    supported = (*SUPPORTED_OPERATIONS[resource_type], Operation.ALL)
    for operation in operations:
        if operation not in supported:
            names = ", ".join(one.title for one in supported)
            raise UsageError(f"{resource_type.title} has no operation {operation.title}, only {names}")


def check_principal(text: str) -> None:
    """Raise UsageError unless a text is a principal."""
    try:
        parse_principal(text.strip())
    except ValueError as error:
        raise UsageError(str(error)) from None
