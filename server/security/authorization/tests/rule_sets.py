"""Rule sets with few names, so that rules collide, and Kafka's rules in their simplest form."""

import random
from typing import NamedTuple

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, ResourcePattern

PRINCIPALS = ("User:a", "User:b", "Group:a")
HOSTS = ("10.0.0.1", "10.0.0.2")
NAMES = ("t", "te", "test", "test-1", "hardcode", "*")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)


class Question(NamedTuple):
    """An operation, on a resource or (without a name) on any resource of a type."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str | None


def random_binding(source: random.Random) -> AclBinding:
    """Return any of some thousand ACLs; two in three allow."""
    pattern_type = source.choice((PatternType.LITERAL, PatternType.PREFIXED))
    pattern = ResourcePattern(source.choice(TYPES), source.choice(NAMES), pattern_type)
    entry = AclEntry(
        source.choice((*PRINCIPALS, "User:*")),
        source.choice((*HOSTS, "*")),
        source.choice((*OPERATIONS, Operation.ALL)),
        source.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
    )
    return AclBinding(pattern, entry)


def all_questions() -> list[Question]:
    """Return every question about these names."""
    return [
        Question(principal, host, operation, resource_type, name)
        for principal in PRINCIPALS
        for host in HOSTS
        for operation in OPERATIONS
        for resource_type in TYPES
        for name in (*NAMES, "other", None)
    ]


def decide_naively(bindings: set[AclBinding], question: Question, *, allows_without_acl: bool) -> bool:
    """Return Kafka's decision, computed from all ACLs."""
    if question.name is None:
        return _decide_any_naively(bindings, question, allows_without_acl=allows_without_acl)
    applying = [one for one in bindings if _applies(one.pattern, question)]
    if not applying:
        return allows_without_acl
    entries = [one.entry for one in applying if _is_for_client(one.entry, question)]
    if any(e.permission is Permission.DENY and e.operation in (question.operation, Operation.ALL) for e in entries):
        return False
    implying = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(question.operation, set())
    return any(
        e.permission is Permission.ALLOW and e.operation in {question.operation, Operation.ALL, *implying}
        for e in entries
    )


def _applies(pattern: ResourcePattern, question: Question) -> bool:
    if pattern.resource_type is not question.resource_type:
        return False
    if pattern.pattern_type is PatternType.PREFIXED:
        return question.name.startswith(pattern.name)
    return pattern.name in (question.name, "*")


def _is_for_client(entry: AclEntry, question: Question) -> bool:
    return entry.principal in (question.principal, "User:*") and entry.host in (question.host, "*")


def _decide_any_naively(bindings: set[AclBinding], question: Question, *, allows_without_acl: bool) -> bool:
    one_resource = question._replace(name="hardcode")
    if decide_naively(bindings, one_resource, allows_without_acl=allows_without_acl):
        return True
    applying = [
        (pattern, entry.permission)
        for pattern, entry in bindings
        if pattern.resource_type is question.resource_type
        and _is_for_client(entry, question)
        and entry.operation in (question.operation, Operation.ALL)
    ]
    denied = {pattern for pattern, permission in applying if permission is Permission.DENY}
    everything = ResourcePattern(question.resource_type, "*")
    if everything in denied:
        return False
    return any(
        pattern == everything
        or (
            not (pattern.pattern_type is PatternType.LITERAL and pattern in denied)
            and not any(
                one.pattern_type is PatternType.PREFIXED and pattern.name.startswith(one.name) for one in denied
            )
        )
        for pattern, permission in applying
        if permission is Permission.ALLOW
    )
