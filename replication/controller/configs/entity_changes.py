"""Changes of the configurations of users, client ids and IP addresses, by any broker or by a tool."""

from collections.abc import Callable
from typing import Final

from odradek.replication.controller.configs.nodes import config_notices
from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CONFIG_ROOT
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    TransactionError,
)

RACES: Final = (BadVersionError, NodeExistsError, NoNodeError)
"""Another broker changed or created the configuration, or removed an old notice, at the same time."""

_ATTEMPTS: Final = 10


async def change_entity(
    store: MetadataStore, path: str, change: Callable[[Configs], Configs], now_ms: Callable[[], int]
) -> Configs:
    """Replace the configuration of an entity by `change` of the current one; return the new one.

    Of two changes at the same time the second is based on the first. `path` is that of `entity_configs`. Raises
    MetadataStoreError, and what `change` raises.
    """
    node_path = f"{CONFIG_ROOT}/{path}"
    for attempt in range(_ATTEMPTS):
        try:
            return await _change_once(store, node_path, change, now_ms())
        except TransactionError as error:
            if not isinstance(error.cause, RACES) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


async def _change_once(
    store: MetadataStore, path: str, change: Callable[[Configs], Configs], now_ms: int
) -> Configs:
    (node,) = await store.get_many([path])
    before = znodes.decode_config(node.data) if node is not None and node.data else {}
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
        operations += await config_notices(store, path, now_ms)
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
