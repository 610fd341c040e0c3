"""ACLs indexed by resource, and the decision by them.

The cost of a decision does not depend on the number of ACLs: it looks up the literal name, `*`, and the prefixes of the
name that have one of the lengths in use, each by the client's principal. Source: Kafka's StandardAuthorizerData,
Authorizer.authorizeByResourceType; KIP-290, KIP-679.
"""

from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata.acls.bindings import (
    NO_ENTRIES,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclEntry,
    AclTable,
    Entries,
    ResourcePattern,
)

_IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Operations that an ALLOW of any of the others includes. A DENY includes no other operation."""


class Decision(NamedTuple):
    """A decision about an operation, with its reason. `rule`: the ACL, if one decides."""

    is_allowed: bool
    reason: str
    rule: AclBinding | None = None

    def __str__(self) -> str:
        return self.reason if self.rule is None else str(self.rule)


MATCHING_ACL: Final = "a matching ACL"
NO_MATCHING_ACL: Final = Decision(False, "no matching ACL")
NO_ACL_DENIED: Final = Decision(False, "no ACL")
NO_ACL_ALLOWED: Final = Decision(True, "no ACL, and allow.everyone.if.no.acl.found is true")


class _Rules:
    """The entries of one pattern, by principal, each with its host as `normalize_host` returns it."""

    __slots__ = ("by_principal", "pattern")

    def __init__(self, pattern: ResourcePattern) -> None:
        self.pattern = pattern
        self.by_principal: dict[str, dict[AclEntry, str]] = {}


class AclIndex:
    """All ACLs. `allows_without_acl`: the decision for resources to which no pattern applies."""

    def __init__(self, *, allows_without_acl: bool) -> None:
        self._default = NO_ACL_ALLOWED if allows_without_acl else NO_ACL_DENIED
        self._entries: dict[ResourcePattern, Entries] = {}
        self._literal: dict[tuple[ResourceType, str], _Rules] = {}
        self._prefixed: dict[tuple[ResourceType, str], _Rules] = {}
        # The lengths of prefixes, by type, with the number of prefixes that have them.
        self._lengths: dict[ResourceType, Counter[int]] = {}
        self._patterns_of: dict[tuple[ResourceType, str], dict[ResourcePattern, None]] = {}

    def update(self, table: AclTable) -> None:
        """Replace the entries of patterns; those without entries are removed."""
        for pattern, entries in table.items():
            before = self._entries.pop(pattern, NO_ENTRIES)
            rules = self._rules_of(pattern)
            for entry in sorted(before - entries):
                self._remove(rules, entry)
            for entry in sorted(entries - before):
                self._add(rules, entry)
            if entries:
                self._entries[pattern] = entries
            else:
                self._drop(pattern)

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Return the decision about an operation on a resource. `host`: see `normalize_host`."""
        allowed: Decision | None = None
        has_rules = False
        for rules in self._find_rules(resource_type, name):
            has_rules = True
            for entry in _entries_for(rules, principal, host):
                if entry.permission is Permission.DENY:
                    if entry.operation in (operation, Operation.ALL):
                        return Decision(False, MATCHING_ACL, AclBinding(rules.pattern, entry))
                elif allowed is None and _allows(entry, operation):
                    allowed = Decision(True, MATCHING_ACL, AclBinding(rules.pattern, entry))
        if allowed is not None:
            return allowed
        return NO_MATCHING_ACL if has_rules else self._default

    def decide_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> Decision:
        """Return whether an operation is allowed on at least one resource of a type, which need not exist.

        As in Kafka, operations that others imply count only if they are allowed on all resources.
        """
        # This name is Kafka's, for an arbitrary resource. Rules about it affect the result as in Kafka.
        decision = self.decide(principal, host, operation, resource_type, "hardcode")
        if decision.is_allowed:
            return decision
        denied: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        allowed: list[AclBinding] = []
        for binding in self._bindings_for(principal, host, operation, resource_type):
            pattern, entry = binding
            if entry.permission is Permission.ALLOW:
                allowed.append(binding)
            elif pattern.name == WILDCARD and pattern.pattern_type is PatternType.LITERAL:
                return Decision(False, MATCHING_ACL, binding)
            else:
                denied[pattern.pattern_type].add(pattern.name)
        for binding in allowed:
            if not _is_dominated(binding.pattern, denied):
                return Decision(True, MATCHING_ACL, binding)
        return NO_MATCHING_ACL

    def _find_rules(self, resource_type: ResourceType, name: str) -> Iterator[_Rules]:
        """Iterate over the patterns that apply to a resource."""
        if (rules := self._literal.get((resource_type, name))) is not None:
            yield rules
        if name != WILDCARD and (rules := self._literal.get((resource_type, WILDCARD))) is not None:
            yield rules
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name) and (rules := self._prefixed.get((resource_type, name[:length]))) is not None:
                yield rules

    def _bindings_for(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> Iterator[AclBinding]:
        """Iterate over the rules about an operation, on any resource of a type."""
        for who in dict.fromkeys((principal, WILDCARD_PRINCIPAL)):
            for pattern in self._patterns_of.get((resource_type, who), ()):
                for entry, its_host in self._rules_of(pattern).by_principal[who].items():
                    if its_host in (host, WILDCARD) and entry.operation in (operation, Operation.ALL):
                        yield AclBinding(pattern, entry)

    def _rules_of(self, pattern: ResourcePattern) -> _Rules:
        """Return the rules of a pattern, which are created if there are none."""
        key = (pattern.resource_type, pattern.name)
        if pattern.pattern_type is PatternType.LITERAL:
            rules = self._literal.get(key)
            if rules is None:
                rules = self._literal[key] = _Rules(pattern)
            return rules
        rules = self._prefixed.get(key)
        if rules is None:
            rules = self._prefixed[key] = _Rules(pattern)
            self._lengths.setdefault(pattern.resource_type, Counter())[len(pattern.name)] += 1
        return rules

    def _drop(self, pattern: ResourcePattern) -> None:
        key = (pattern.resource_type, pattern.name)
        if pattern.pattern_type is PatternType.LITERAL:
            del self._literal[key]
            return
        del self._prefixed[key]
        lengths = self._lengths[pattern.resource_type]
        lengths[len(pattern.name)] -= 1
        if not lengths[len(pattern.name)]:
            del lengths[len(pattern.name)]

    def _add(self, rules: _Rules, entry: AclEntry) -> None:
        rules.by_principal.setdefault(entry.principal, {})[entry] = normalize_host(entry.host)
        key = (rules.pattern.resource_type, entry.principal)
        self._patterns_of.setdefault(key, {})[rules.pattern] = None

    def _remove(self, rules: _Rules, entry: AclEntry) -> None:
        entries = rules.by_principal[entry.principal]
        del entries[entry]
        if entries:
            return
        del rules.by_principal[entry.principal]
        key = (rules.pattern.resource_type, entry.principal)
        patterns = self._patterns_of[key]
        del patterns[rules.pattern]
        if not patterns:
            del self._patterns_of[key]


def normalize_host(host: str) -> str:
    """Return the one form of a numeric address that hosts are compared in; other text is returned as it is.

    Java, and therefore an ACL made for Kafka, has another form of an IPv6 address than most programs. An IPv4 address
    may be embedded in one of IPv6.
    """
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


def _entries_for(rules: _Rules, principal: str, host: str) -> Iterator[AclEntry]:
    for who in (principal, WILDCARD_PRINCIPAL):
        entries = rules.by_principal.get(who)
        if entries is not None:
            for entry, its_host in entries.items():
                if its_host in (host, WILDCARD):
                    yield entry


def _allows(entry: AclEntry, operation: Operation) -> bool:
    if entry.permission is not Permission.ALLOW:
        return False
    return entry.operation in (operation, Operation.ALL) or entry.operation in _IMPLIED_BY.get(operation, ())


def _is_dominated(pattern: ResourcePattern, denied: dict[PatternType, set[str]]) -> bool:
    """Return whether denied patterns contain all resources of an allowed one."""
    if pattern.pattern_type is PatternType.LITERAL:
        if pattern.name == WILDCARD:
            return False
        if pattern.name in denied[PatternType.LITERAL]:
            return True
    return any(pattern.name[:length] in denied[PatternType.PREFIXED] for length in range(1, len(pattern.name) + 1))
