"""Operations on the nodes of configurations, and the notices of their changes."""

from collections.abc import Mapping
from typing import Final

from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import Create, Delete, MetadataStore, Operation, SetData

NOTICE_KEPT_MS: Final = 15 * 60_000

MAX_REMOVED_NOTICES: Final = 50
"""Most old notices that one change removes. Each change adds one notice, so their number falls."""


async def config_operations(
    store: MetadataStore, path: str, configs: Mapping[str, str], now_ms: int
) -> list[Operation]:
    """Return the operations that replace the configuration at `path`, with a notice for other brokers if there are any.

    Raises MetadataStoreError.
    """
    data = znodes.encode_config(dict(configs))
    exists = await store.exists(path) is not None
    operations: list[Operation] = [SetData(path, data) if exists else Create(path, data)]
    if store.is_shared:
        operations += await config_notices(store, path, now_ms)
    return operations


async def config_notices(
    store: MetadataStore, path: str, now_ms: int, root: str = znodes.CONFIG_CHANGES
) -> list[Operation]:
    """Return a notice below `root` of the change of the configuration at `path`, and the removal of some old ones.

    Raises MetadataStoreError.
    """
    change = znodes.encode_config_change(path.removeprefix("/config/"))
    notice = Create(f"{root}/config_change_", change, sequential=True)
    return [notice, *await remove_old_notices(store, root, now_ms)]


async def remove_old_notices(store: MetadataStore, root: str, now_ms: int) -> list[Operation]:
    """Return the removal of some old notices below `root`. Raises MetadataStoreError."""
    operations: list[Operation] = []
    for name in (await store.get_children(root))[:MAX_REMOVED_NOTICES]:
        old = f"{root}/{name}"
        stat = await store.exists(old)
        if stat is not None and stat.created_ms > now_ms - NOTICE_KEPT_MS:
            break
        operations.append(Delete(old))
    return operations
