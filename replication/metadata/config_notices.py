"""The notices of changed configurations: sequential nodes, whose names ascend, below one node of the store."""

import logging

from odradek.replication.metadata import znodes
from odradek.replication.metadata.loader import read_node
from odradek.replication.metadata.store import MetadataStore, NoNodeError, StoreDamagedError, Watcher

logger = logging.getLogger(__name__)


class ConfigNotices:
    """The notices that are new since `skip`, or since the last `finish`.

    Calls must not overlap: `finish` counts what the latest `read` returned. The callers are events of one queue.

    watch: set by each read of the names
    missing_level: log level for a notice that is removed before it is read
    """

    def __init__(self, store: MetadataStore, watch: Watcher, missing_level: int) -> None:
        self._store = store
        self._watch = watch
        self._missing_level = missing_level
        self._last = self._read_to = ""

    async def skip(self) -> None:
        """Count all present notices as followed. Raises MetadataStoreError."""
        names = await self._store.get_children(znodes.CONFIG_CHANGES, self._watch)
        self._last = self._read_to = max(names, default="")

    async def read(self) -> list[str]:
        """Return the entity paths of the new notices, sorted. They remain new until `finish`.

        Raises MetadataStoreError.
        """
        names = await self._store.get_children(znodes.CONFIG_CHANGES, self._watch)
        new = [name for name in names if name > self._last]
        changed = set()
        for name in new:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            try:
                changed.add(await read_node(self._store, path, lambda node: znodes.decode_config_change(node.data)))
            except NoNodeError:
                logger.log(self._missing_level, "a notice of a changed configuration was removed path=%s", path)
            except StoreDamagedError as error:
                logger.error("a notice of a changed configuration cannot be read: %s", error)
        self._read_to = max(new, default=self._last)
        return sorted(changed)

    def finish(self) -> None:
        """Count the notices of the last `read` as followed."""
        self._last = self._read_to
