"""ACLs in the metadata store of a broker that is stopped, or of a cluster with ZooKeeper whose brokers may run.

The first ACL can be added before the first start; brokers of a cluster apply a change at once.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from typing import Any, Final, TypeVar

from odradek.protocol.access_control import Operation, ResourceType
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.acl_changes import AclChanges
from odradek.replication.controller.events import EventLoop
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, AclFilter, ResourcePattern
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError, Waiter
from odradek.replication.pauses import no_pause
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.security.authorization.acl_authorizer import make_authorizer
from odradek.server.store_tools.errors import OpenStoreError, StoreToolError
from odradek.server.store_tools.store import run_with_store
from odradek.server.stores.sqlite_file import StoreLockedError

T = TypeVar("T")

_LOCKED: Final = "the broker is running, with its metadata store open: stop it, or use --bootstrap-server"


def add_acls(config: BrokerConfig, added: Mapping[ResourcePattern, Set[AclEntry]]) -> None:
    """Add ACLs. Raises StoreToolError."""

    async def work(acls: AclChanges) -> None:
        for pattern in added:
            acls.check_name(pattern.name)
        for error in (await acls.create(dict(added))).values():
            raise error

    _run(config, work)


def find_acls(config: BrokerConfig, filters: Sequence[AclFilter]) -> list[AclBinding]:
    """Return the ACLs that any of the filters selects, sorted. Raises StoreToolError."""

    async def work(acls: AclChanges) -> list[AclBinding]:
        return _select(acls, filters)

    return _run(config, work)


def remove_acls(
    config: BrokerConfig, filters: Sequence[AclFilter], confirm: Callable[[list[AclBinding]], bool]
) -> None:
    """Remove the ACLs that any of the filters selects, if `confirm` returns true for them. Raises StoreToolError."""

    async def work(acls: AclChanges) -> None:
        if not confirm(_select(acls, filters)):
            return
        for result in await acls.delete(list(filters)):
            if result.error is not None:
                raise result.error

    # One run, because the reactor cannot be started again.
    _run(config, work)


def _select(acls: AclChanges, filters: Sequence[AclFilter]) -> list[AclBinding]:
    return sorted(
        AclBinding(pattern, entry)
        for pattern, entries in acls.cache.acls.items()
        for entry in entries
        if any(one.matches_pattern(pattern) and one.matches_entry(entry) for one in filters)
    )


def explain(
    config: BrokerConfig, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
) -> tuple[bool, str]:
    """Return whether an operation is allowed, and the rule that decides. Raises StoreToolError."""

    async def work(acls: AclChanges) -> tuple[bool, str]:
        if not config.authorizer_class_name:
            return True, "every operation is, because authorizer.class.name is not set"
        authorizer = make_authorizer(config, acls.cache, lambda: 0, lambda delay_ms, task: None)
        decision = authorizer.explain(principal, host, operation, resource_type, name)
        return decision.is_allowed, str(decision)

    return _run(config, work)


def _run(config: BrokerConfig, work: Callable[[AclChanges], Coroutine[Any, Any, T]]) -> T:
    async def with_store(store: MetadataStore, environment: Environment) -> T:
        cache = AclCache(store, lambda description, follow: None, no_pause)
        acls = AclChanges(store, cache, EventLoop(_ReactorExecutor()), environment.now_ms)
        await acls.load()
        return await work(acls)

    try:
        return run_with_store(config, with_store)
    except StoreLockedError:
        raise OpenStoreError(_LOCKED) from None
    except (MetadataStoreError, StartError, KafkaError) as error:
        raise StoreToolError(str(error)) from None


class _ReactorExecutor:
    """Executes the changes of a command, which has no other work."""

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine, also after it has waited."""
        from twisted.internet.defer import Deferred

        Deferred.fromCoroutine(work)

    def waiter(self) -> Waiter:
        """Return a new waiter."""
        from twisted.internet.defer import Deferred

        return Deferred()

    async def pause(self) -> None:
        """Return at once."""
