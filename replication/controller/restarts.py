"""Marks of registrations that no controller has followed: a restart must not remain unnoticed.

After a power failure a broker may lack records that it has acknowledged. The controller compares the epochs of a broker
while it runs, but the next controller has no earlier epoch to compare with. Each broker therefore creates a mark in the
transaction of its registration; the controller deletes it when the elections that follow have been written.

A mark also states what its broker can lack (`znodes.Restart`): nothing if it is the same process in a new session, and
whole logs if it lost a disk. The mark applies to the registration of the same transaction only: another one may be by
a broker of Apache Kafka with the same id. The mark of a process that continued stays as long as this registration, and
has the epoch of the first one of the process: states that were written in between do not show a restart.

Brokers of Apache Kafka create no marks, and a controller of Apache Kafka deletes none. Therefore the parent of the
marks has the epoch of the last controller, which it writes with its claim if it finds the epoch of its predecessor.
After an epoch of another one, the marks may be of restarts that it has followed.
"""

from collections.abc import Set
from typing import NamedTuple

from odradek.replication.controller.context import ControllerContext
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.metadata.loader import get_children_if_any, read_nodes
from odradek.replication.metadata.store import Delete, MetadataStore, Node, NoNodeError, Operation, SetData
from odradek.replication.metadata.znodes import Restart


class _Mark(NamedTuple):
    """A mark, as `RegistrationMark`.

    written: the transaction that wrote it, which is the epoch of the registration to which it applies
    """

    restart: Restart
    first_epoch: int
    written: int
    version: int


class RestartMarks:
    """Reads and deletes the marks. Methods are called within an event of the controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._marks: dict[int, _Mark] = {}
        self._are_unfollowed = False

    async def read_for_takeover(self) -> None:
        """Read the marks as a new controller.

        They are not those of restarts that no controller has followed if the last controller was of Apache Kafka, which
        follows restarts but deletes no marks.
        """
        context = self._context
        await context.store.ensure_path(znodes.RESTARTS)
        await self.read()
        node = await context.store.get(znodes.RESTARTS)
        self._are_unfollowed = node.data == b"%d" % context.epoch
        if not self._are_unfollowed:
            # Before the epoch: if this takeover is interrupted, the next one must not use these marks, either.
            await self._delete(self.find(Restart.LOST, Restart.LOSSY))
            await context.write([SetData(znodes.RESTARTS, b"%d" % context.epoch)])

    def find_unfollowed(self, *kinds: Restart) -> Set[int]:
        """Return the brokers with a mark of one of these kinds, of a restart that no controller has followed."""
        return self.find(*kinds) if self._are_unfollowed else frozenset()

    def find(self, *kinds: Restart) -> Set[int]:
        """Return the brokers with a mark of one of these kinds."""
        return {broker_id for broker_id, mark in self._marks.items() if mark.restart in kinds}

    def find_first_epoch(self, broker: BrokerMetadata) -> int | None:
        """Return the epoch of the first registration of a broker's process, if the present one is another one."""
        mark = self._marks.get(broker.broker_id)
        if mark is None or mark.written != broker.epoch or mark.restart is not Restart.CONTINUED:
            return None
        return mark.first_epoch

    def has_continued(self, broker: BrokerMetadata) -> bool:
        """Return whether a broker that registered is the process of the earlier registration."""
        return self.find_first_epoch(broker) is not None

    async def read(self) -> bool:
        """Read the marks; return whether they have changed since they were read last.

        The registrations are read afterwards, so that they are those of the marks or later.
        """
        earlier, self._marks = self._marks, {}
        context = self._context
        if not context.in_cluster:
            return False
        names = await get_children_if_any(context.store, znodes.RESTARTS)
        paths = {znodes.restart_path(int(name)): int(name) for name in names if name.isdigit()}
        marks = await read_nodes(context.store, dict.fromkeys(paths, _decode), context.pause)
        self._marks = {paths[path]: mark for path, mark in marks.items()}
        return self._marks != earlier

    async def delete(self) -> None:
        """Delete the marks that were read, of brokers in the image that have not continued.

        A broker that has registered again since keeps its mark, and one without a registration, too: no election has
        used it.
        """
        brokers = self._context.image.brokers
        await self._delete({one for one in self._marks if one in brokers and not self.has_continued(brokers[one])})

    async def _delete(self, broker_ids: Set[int]) -> None:
        marks = self._marks
        self._marks = {broker_id: mark for broker_id, mark in marks.items() if broker_id not in broker_ids}
        await self._context.delete_nodes(
            [Delete(znodes.restart_path(broker_id), marks[broker_id].version) for broker_id in sorted(broker_ids)]
        )


async def continue_epochs(store: MetadataStore, epoch: int) -> list[Operation]:
    """Return the part of the claim of an epoch that shows that no controller of Apache Kafka preceded it.

    It is in the transaction of the claim, because a controller may end before it reads the marks.
    """
    try:
        node = await store.get(znodes.RESTARTS)
    except NoNodeError:
        return []
    return [SetData(znodes.RESTARTS, b"%d" % epoch, node.stat.version)] if node.data == b"%d" % (epoch - 1) else []


def _decode(node: Node) -> _Mark:
    return _Mark(*znodes.decode_restart(node.data), node.stat.modified_id, node.stat.version)
