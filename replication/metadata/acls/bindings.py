"""Resource patterns, access control entries, and filters of both.

Sources: Kafka's ResourcePattern, AccessControlEntry, ResourcePatternFilter, AccessControlEntryFilter; KIP-290.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType

RESOURCE_TYPES: Final = tuple(code for code in ResourceType if code > ResourceType.ANY)

WILDCARD: Final = "*"
"""The literal name that matches every resource of a type, and the host that matches every host."""

WILDCARD_PRINCIPAL: Final = "User:*"
"""The principal of entries for everybody."""

MAX_MATCHED_LENGTH: Final = 249
"""Length of a resource name up to which each of its prefixes is looked up. No name of a topic is longer."""


class ResourcePattern(NamedTuple):
    """The resources that ACLs apply to. `pattern_type`: LITERAL or PREFIXED."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.resource_type.title}:{self.pattern_type.name}:{self.name}"


class AclEntry(NamedTuple):
    """One rule: who may, or must not, do what from where. `principal`: `Type:name`."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclBinding(NamedTuple):
    """A rule and the resources it applies to."""

    pattern: ResourcePattern
    entry: AclEntry

    def __str__(self) -> str:
        permission, operation = self.entry.permission.name, self.entry.operation.title
        return f"{permission} {operation} for {self.entry.principal} from {self.entry.host} on {self.pattern}"


Entries = frozenset[AclEntry]
AclTable = Mapping[ResourcePattern, Entries]

NO_ENTRIES: Final[Entries] = frozenset()


class AclFilter(NamedTuple):
    """A selection of bindings. None and ANY match everything.

    pattern_type: MATCH selects the patterns that apply to the resource `name`, including prefixes and `*`
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Return whether the filter selects entries of a pattern."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def matches_entry(self, entry: AclEntry) -> bool:
        """Return whether the filter selects an entry of a matching pattern."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def named_patterns(self) -> list[ResourcePattern] | None:
        """Return all patterns that the filter can select, whether or not they have entries.

        None if there are too many: the filter has no name, or a long name, each start of which is a prefix.
        """
        if self.name is None or (self.pattern_type is PatternType.MATCH and len(self.name) > MAX_MATCHED_LENGTH):
            return None
        if self.pattern_type is PatternType.MATCH:
            literal = [(PatternType.LITERAL, name) for name in dict.fromkeys((self.name, WILDCARD))]
            lengths = range(1, len(self.name) + 1)
            kinds = literal + [(PatternType.PREFIXED, self.name[:length]) for length in lengths]
        else:
            every = (PatternType.LITERAL, PatternType.PREFIXED)
            kinds = [(one, self.name) for one in every if self.pattern_type in (PatternType.ANY, one)]
        types = RESOURCE_TYPES if self.resource_type is ResourceType.ANY else (self.resource_type,)
        return [ResourcePattern(type_, name, kind) for type_ in types for kind, name in kinds]
