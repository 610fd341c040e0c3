"""The built-in authorizer: super users, then ACLs. DENY takes precedence over ALLOW.

Decisions are cached until an ACL changes, so that a repeated request costs one look-up. Sources: Kafka's
StandardAuthorizer; KIP-11, KIP-290, KIP-504, KIP-679.
"""

from collections.abc import Callable, Collection
from typing import Final

from odradek.protocol.access_control import Operation, ResourceType
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclTable
from odradek.server.config import BrokerConfig
from odradek.server.config.properties.authorization import parse_super_users
from odradek.server.security.authorization.acl_index import AclIndex, Decision, normalize_host
from odradek.server.security.authorization.audit_log import Attempt, AuditLog, RunLater
from odradek.server.security.authorization.authorizer import AuthorizedClient
from odradek.server.security.principal import Principal

MAX_CACHED: Final = 20_000
MAX_CACHED_NAME_LENGTH: Final = 255
"""Limits of the cache of decisions: its keys contain names that clients choose."""

SUPER_USER: Final = Decision(True, "super user")

_Key = tuple[Principal, str, Operation, ResourceType, str | None]


class AclAuthorizer:
    """Decides by the ACLs in `acls` (`authorizer.Authorizer`).

    super_users: allowed everything, `Type:name`
    allows_without_acl: `allow.everyone.if.no.acl.found`
    run_later: calls a coroutine function after some ms
    """

    def __init__(
        self,
        acls: AclCache,
        super_users: Collection[str],
        *,
        allows_without_acl: bool,
        monotonic_ms: Callable[[], int],
        run_later: RunLater,
    ) -> None:
        self.version = 0
        self._super_users = frozenset(super_users)
        self._index = AclIndex(allows_without_acl=allows_without_acl)
        self._audit_log = AuditLog(monotonic_ms, run_later)
        self._decisions: dict[_Key, Decision] = {}
        self._index.update(acls.acls)
        acls.listeners.append(self._on_change)

    def allows(
        self,
        client: AuthorizedClient,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        audits_denial: bool = True,
    ) -> bool:
        """Return whether the client may perform an operation on a resource."""
        key = (client.principal, client.client_host, operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(key)
        self._log(key, decision, audits_denial)
        return decision.is_allowed

    def allows_any(self, client: AuthorizedClient, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the client may perform an operation on at least one resource of a type (KIP-679)."""
        key = (client.principal, client.client_host, operation, resource_type, None)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(key)
        self._log(key, decision, audits_denial=True)
        return decision.is_allowed

    def explain(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Return the decision about an operation, with its reason. `host`: a numeric address."""
        if principal in self._super_users:
            return SUPER_USER
        return self._index.decide(principal, normalize_host(host), operation, resource_type, name)

    def _decide(self, key: _Key) -> Decision:
        principal, client_host, operation, resource_type, name = key
        who, host = str(principal), client_host.removeprefix("/")
        if name is not None:
            decision = self.explain(who, host, operation, resource_type, name)
            if len(name) > MAX_CACHED_NAME_LENGTH:
                return decision
        elif who in self._super_users:
            decision = SUPER_USER
        else:
            decision = self._index.decide_any(who, normalize_host(host), operation, resource_type)
        if len(self._decisions) >= MAX_CACHED:
            self._decisions.clear()
        self._decisions[key] = decision
        return decision

    def _log(self, key: _Key, decision: Decision, audits_denial: bool) -> None:
        if decision.is_allowed:
            if self._audit_log.has_permissions:
                self._audit_log.allowed(_make_attempt(key), decision)
        elif audits_denial:
            self._audit_log.denied(_make_attempt(key), decision)

    def _on_change(self, table: AclTable) -> None:
        self._index.update(table)
        self._decisions.clear()
        self.version += 1


def _make_attempt(key: _Key) -> Attempt:
    principal, client_host, operation, resource_type, name = key
    return Attempt(str(principal), client_host.removeprefix("/"), operation, resource_type, name)


def make_authorizer(
    config: BrokerConfig, acls: AclCache, monotonic_ms: Callable[[], int], run_later: RunLater
) -> AclAuthorizer:
    """Return the authorizer of a broker with `authorizer.class.name`."""
    return AclAuthorizer(
        acls,
        parse_super_users(config.super_users),
        allows_without_acl=config.allow_everyone_if_no_acl_found,
        monotonic_ms=monotonic_ms,
        run_later=run_later,
    )
