"""The ACLs of a broker with an authorizer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.metadata.store import MetadataStore
from odradek.server.config import BrokerConfig

if TYPE_CHECKING:
    from odradek.replication.controller.acl_changes import AclChanges


def make_acls(
    config: BrokerConfig, store: MetadataStore, events: EventLoop, now_ms: Callable[[], int]
) -> "AclChanges | None":
    """Return the ACLs, which are not loaded yet, and their changes as events; None without an authorizer."""
    if not config.authorizer_class_name:
        return None
    # Imported here because most brokers have no authorizer.
    from odradek.replication.controller.acl_changes import AclChanges
    from odradek.replication.metadata.acls.acl_cache import AclCache

    cache = AclCache(
        store,
        lambda description, work: events.post(EventKind.CONFIGURATION, description, work),
        events.executor.pause,
    )
    return AclChanges(store, cache, events, now_ms)
