"""Changes in the store by any broker, and their notices: sequential nodes, whose names ascend, below one node."""

import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

from odradek.replication.metadata import znodes
from odradek.replication.metadata.loader import read_node
from odradek.replication.metadata.store import (
    Create,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    StoreDamagedError,
    TransactionError,
    Watcher,
)

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Hashable)

Post = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], None]
"""Runs a coroutine function after those posted before; logs its error with the description."""


class ChangeNotices(Generic[T]):
    """The notices that are new since `skip`, or since the last `finish`.

    Calls must not overlap: `finish` counts what the latest `read` returned. The callers are events of one queue.

    root: the parent of the notices
    decode: returns what a notice points to
    watch: set by each read of the names
    missing_level: log level for a notice that is removed before it is read
    """

    def __init__(
        self, store: MetadataStore, root: str, decode: Callable[[Node], T], watch: Watcher, missing_level: int
    ) -> None:
        self._store = store
        self._root = root
        self._decode = decode
        self._watch = watch
        self._missing_level = missing_level
        self._last = self._read_to = ""

    async def skip(self) -> None:
        """Count all present notices as followed. Raises MetadataStoreError."""
        names = await self._store.get_children(self._root, self._watch)
        self._last = self._read_to = max(names, default="")

    async def read(self) -> list[T]:
        """Return what the new notices point to, each once, in the order of the notices. They remain new until `finish`.

        Raises MetadataStoreError.
        """
        names = await self._store.get_children(self._root, self._watch)
        new = [name for name in names if name > self._last]
        changed = []
        for name in new:
            path = f"{self._root}/{name}"
            try:
                changed.append(await read_node(self._store, path, self._decode))
            except NoNodeError:
                logger.log(self._missing_level, "a notice of a change was removed path=%s", path)
            except StoreDamagedError as error:
                logger.error("a notice of a change cannot be read: %s", error)
        self._read_to = max(new, default=self._last)
        return list(dict.fromkeys(changed))

    def finish(self) -> None:
        """Count the notices of the last `read` as followed."""
        self._last = self._read_to


def make_config_notices(
    store: MetadataStore, watch: Watcher, missing_level: int, root: str = znodes.CONFIG_CHANGES
) -> ChangeNotices[str]:
    """Return the notices of changed configurations, which are entity paths such as `topics/t`."""
    return ChangeNotices(
        store, root, lambda node: znodes.decode_config_change(node.data), watch, missing_level
    )


async def lay_out(store: MetadataStore, paths: Sequence[str]) -> None:
    """Create those of the nodes that are missing; a parent precedes its children. Raises MetadataStoreError."""
    while missing := [
        path for path, node in zip(paths, await store.get_many(paths), strict=True) if node is None
    ]:
        try:
            await store.transaction([Create(path) for path in missing])
        except TransactionError as error:
            # Another broker was faster.
            if not isinstance(error.cause, NodeExistsError):
                raise
