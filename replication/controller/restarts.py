"""Marks of registrations that no controller has followed: a restart must not remain unnoticed.

After a power failure a broker may lack records that it has acknowledged. The controller compares the epochs of a broker
while it runs, but the next controller has no earlier epoch to compare with. Each broker therefore creates a mark in the
transaction of its registration; the controller deletes it when the elections that follow have been written.

Brokers of Apache Kafka create no marks, and a controller of Apache Kafka deletes none. Therefore the parent of the
marks has the epoch of the last controller that read them. After an epoch of another one, the marks may be of restarts
that it has followed.
"""

import logging
from collections.abc import Set

from odradek.replication.controller.context import ControllerContext
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import Delete, SetData, TransactionError

logger = logging.getLogger(__name__)


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
        await self.read()
        context = self._context
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
        store = self._context.store
        if not self._context.in_cluster:
            return
        await store.ensure_path(znodes.RESTARTS)
        for name in await store.get_children(znodes.RESTARTS):
            stat = await store.exists(f"{znodes.RESTARTS}/{name}")
            if stat is not None and name.isdigit():
                self._versions[int(name)] = stat.version

    async def delete(self) -> None:
        """Delete the marks that were read, except of brokers that have registered again since."""
        versions, self._versions = self._versions, {}
        for broker_id, version in versions.items():
            try:
                await self._context.write([Delete(znodes.restart_path(broker_id), version)])
            except TransactionError as error:
                logger.debug("the mark of a restart has changed broker=%d: %s", broker_id, error)
