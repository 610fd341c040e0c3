"""Marks of registrations that no controller has followed: a restart must not remain unnoticed.

After a power failure a broker may lack records that it has acknowledged. The controller compares the epochs of a broker
while it runs, but the next controller has no earlier epoch to compare with. Each broker therefore creates a mark in the
transaction of its registration; the controller deletes it when the elections that follow have been written.

Brokers of Apache Kafka create no marks, and a controller of Apache Kafka deletes none. Therefore the parent of the
marks has the epoch of the last controller that read them. After an epoch of another one, the marks may be of restarts
that it has followed.
"""

from collections.abc import Set

from odradek.replication.controller.context import ControllerContext
from odradek.replication.metadata import znodes
from odradek.replication.metadata.loader import get_children_if_any, read_versions
from odradek.replication.metadata.store import Delete, SetData


class RestartMarks:
    """Reads and deletes the marks. Methods are called within an event of the controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._versions: dict[int, int] = {}

    async def read_for_takeover(self) -> Set[int]:
        """Read the marks as a new controller, and return the brokers whose restarts were not followed.

        None are returned if the last controller was of Apache Kafka, which follows restarts but deletes no marks, or if
        it ended before it read the marks.
        """
        context = self._context
        await context.store.ensure_path(znodes.RESTARTS)
        await self.read()
        node = await context.store.get(znodes.RESTARTS)
        await context.write([SetData(znodes.RESTARTS, b"%d" % context.epoch)])
        return self.broker_ids if node.data == b"%d" % (context.epoch - 1) else frozenset()

    @property
    def broker_ids(self) -> Set[int]:
        """The brokers that had a mark when the marks were last read."""
        return self._versions.keys()

    async def read(self) -> None:
        """Read the marks. The registrations are read afterwards, so that they are those of the marks or later."""
        self._versions = {}
        context = self._context
        if not context.in_cluster:
            return
        names = await get_children_if_any(context.store, znodes.RESTARTS)
        paths = {znodes.restart_path(int(name)): int(name) for name in names if name.isdigit()}
        versions = await read_versions(context.store, paths, context.pause)
        self._versions = {paths[path]: version for path, version in versions.items()}

    async def delete(self) -> None:
        """Delete the marks that were read, except of brokers that have registered again since."""
        versions, self._versions = self._versions, {}
        await self._context.delete_nodes(
            [Delete(znodes.restart_path(broker_id), version) for broker_id, version in versions.items()]
        )
