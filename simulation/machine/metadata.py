"""The embedded metadata stores of the simulated machine, one in each log directory in which a broker has opened one.

Committed transactions survive every crash. A transaction may fail before its commit, or after it: then it is in the
store although the broker gets an error.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING, TypeVar

from odradek.log.storage.memory_filesystem import SimulatedCrash
from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore, MemoryNodeTable
from odradek.replication.metadata.store import (
    MetadataStore,
    Operation,
    OperationResult,
    Pacing,
    SessionEvent,
    StoreUnavailableError,
)
from odradek.replication.metadata.znode_store import delete_ephemerals

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.world import World

T = TypeVar("T")


class SimulatedMetadata:
    """All stores of a machine. As with the embedded store, transactions of a running broker suspend.

    was_lost: logs were found without their configuration; data behind a gap in such a log is kept
    """

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._servers: dict[str, MemoryMetadataServer] = {}
        self._sessions: dict[str, MemoryMetadataStore] = {}
        self._failures: list[bool] = []
        self._is_after_commit = False
        self.was_lost = False

    def is_in(self, directory: str) -> bool:
        """Return whether a store was created in this log directory."""
        return directory in self._servers

    def open(self, directory: str, reactor: "ProcessReactor") -> MetadataStore:
        """Open a session for a process of the broker; sessions of earlier processes have ended."""
        server = self._servers.get(directory)
        if server is None:
            server = self._servers[directory] = MemoryMetadataServer(self._world.wall_clock.now_ms)
        table, watches, now_ms = server.parts
        last = self._sessions.get(directory)
        if last is not None:
            watches.drop_session(last.session_id)
        delete_ephemerals(table, watches, None, now_ms())
        server._last_session_id += 1
        store = _Session(server, server._last_session_id)
        store.metadata, store.world, store.reactor = self, self._world, reactor
        self._sessions[directory] = store
        return store

    def lose(self) -> None:
        """Delete all stores."""
        self._servers.clear()
        self._sessions.clear()
        self.was_lost = True

    def copy(self) -> Mapping[str, MemoryNodeTable]:
        """Return a copy of the content of all stores, as a backup has it."""
        return {directory: deepcopy(server._table) for directory, server in self._servers.items()}

    def restore(self, copies: Mapping[str, MemoryNodeTable]) -> None:
        """Replace the content of the stores by an older copy, while no broker runs."""
        for directory, table in copies.items():
            self._servers[directory]._table = deepcopy(table)
        self._sessions.clear()

    def fail(self, passes: int, failures: int, *, after_commit: bool) -> None:
        """Make `failures` transactions fail, before or after their commit, after the next `passes` have succeeded."""
        self._failures = [False] * passes + [True] * failures
        self._is_after_commit = after_commit

    def repair(self) -> None:
        """Make all further transactions succeed."""
        self._failures.clear()

    def carry_out(
        self, transaction: Callable[[], list[OperationResult]], on_unknown_outcome: Callable[[], None]
    ) -> list[OperationResult]:
        """Run a transaction, unless it has to fail. Raises StoreUnavailableError."""
        fails = bool(self._failures) and self._failures.pop(0)
        if fails and not self._is_after_commit:
            raise self._failure("before its commit")
        results = transaction()
        if fails:
            on_unknown_outcome()
            raise self._failure("after its commit")
        return results

    def _failure(self, when: str) -> StoreUnavailableError:
        self._world.broker.disk.has_refused = True
        self._world.trace(f"a transaction of the metadata store fails {when}")
        return StoreUnavailableError("simulated failure of the metadata store")

    def pause_s(self) -> float:
        """Return the duration of a disconnection."""
        return self._random.uniform(0.05, 0.5)


class _Session(MemoryMetadataStore):
    """A session in which the process may die before and after each commit.

    While the outcome of a change is unknown, the session rejects further changes, as the embedded store does: a change
    might otherwise be applied twice.
    """

    metadata: SimulatedMetadata
    world: "World"
    reactor: "ProcessReactor"
    is_connected = True

    def pace(self, pacing: Pacing) -> None:
        """Suspend in each transaction from now on."""
        self._pacing = pacing

    async def _carry_out_paced(self, operations: Sequence[Operation], pacing: Pacing) -> list[OperationResult]:
        await pacing.in_thread(lambda: None)
        return self._carry_out(operations)

    def _carry_out(self, operations: Sequence[Operation]) -> list[OperationResult]:
        if not self.reactor.is_alive:
            raise SimulatedCrash("metadata")
        if not self.is_connected:
            raise StoreUnavailableError("the outcome of the last change is not known yet")
        self.world.broker.disk.before("commit", "metadata")
        carry_out = super()._carry_out
        results = self.metadata.carry_out(lambda: carry_out(operations), self._lose_contact)
        self.world.broker.disk.before("committed", "metadata")
        return results

    def _lose_contact(self) -> None:
        """Disconnect for a limited time. At CONNECTED the broker reads whether the change was made."""
        self.is_connected = False
        self._notify(SessionEvent.DISCONNECTED)
        self.reactor.callLater(self.metadata.pause_s(), self._regain_contact)

    def _regain_contact(self) -> None:
        self.is_connected = True
        self._notify(SessionEvent.CONNECTED)

    def _notify(self, event: SessionEvent) -> None:
        for listener in list(self._session_listeners):
            listener(event)
