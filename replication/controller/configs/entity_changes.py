"""Changes of the configurations of users, client ids, IP addresses and client metrics, by any broker or a tool."""

from collections.abc import Callable
from functools import partial

from odradek.replication.controller.configs.nodes import config_notices
from odradek.replication.controller.races import retry_races
from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CONFIG_ROOT, decode_entity
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.loader import decode_node
from odradek.replication.metadata.store import Create, MetadataStore, Operation, SetData


async def change_entity(
    store: MetadataStore,
    path: str,
    change: Callable[[Configs], Configs],
    now_ms: Callable[[], int],
    changes: str = znodes.CONFIG_CHANGES,
) -> Configs:
    """Replace the configuration of an entity by `change` of the current one; return the new one.

    Of two changes at the same time the second is based on the first. `path` is that of `entity_configs`, and `changes`
    the parent of the notices. Raises MetadataStoreError, also if the current configuration cannot be decoded, and what
    `change` raises.
    """
    return await retry_races(partial(_change_once, store, f"{CONFIG_ROOT}/{path}", change, now_ms, changes))


async def _change_once(
    store: MetadataStore, path: str, change: Callable[[Configs], Configs], now_ms: Callable[[], int], changes: str
) -> Configs:
    (node,) = await store.get_many([path])
    before = {} if node is None else decode_node(store, path, decode_entity, node)
    after = dict(change(before))
    if after == before:
        return after
    data = znodes.encode_config(after)
    operations: list[Operation] = []
    if node is None:
        operations += [Create(parent) for parent in await _find_missing_parents(store, path)]
        operations.append(Create(path, data))
    else:
        operations.append(SetData(path, data, node.stat.version))
    if store.is_shared:
        operations += await config_notices(store, path, now_ms(), changes)
    await store.transaction(operations)
    return after


async def _find_missing_parents(store: MetadataStore, path: str) -> list[str]:
    """Return the parents of a node that do not exist, the uppermost first."""
    missing: list[str] = []
    parent = path.rpartition("/")[0]
    while parent and await store.exists(parent) is None:
        missing.insert(0, parent)
        parent = parent.rpartition("/")[0]
    return missing
