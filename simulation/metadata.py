"""The metadata stores of the simulated machine, one in each log directory where a broker has opened one.

What was committed outlives every crash. A transaction may fail before it is carried out, or after: then it is in the
store, and the broker got an error.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

from odradek.log.storage.memory_filesystem import SimulatedCrash
from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore
from odradek.replication.metadata.store import (
    MetadataStore,
    Operation,
    OperationResult,
    SessionEvent,
    StoreUnavailableError,
)
from odradek.replication.metadata.znode_store import delete_ephemerals

if TYPE_CHECKING:
    from odradek.simulation.broker_process import ProcessReactor
    from odradek.simulation.world import World

T = TypeVar("T")


class SimulatedMetadata:
    """All stores. As with the embedded store, no method suspends.

    was_lost: logs were found whose configuration nothing told; what follows a hole in such a log is kept
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
        """A session for one life of a broker; those of earlier lives are over."""
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
        """All stores are gone: somebody has deleted them."""
        self._servers.clear()
        self._sessions.clear()
        self.was_lost = True

    def fail(self, passes: int, failures: int, *, after_commit: bool) -> None:
        """Let some of the transactions to come pass, then let some fail, each before its commit or after it."""
        self._failures = [False] * passes + [True] * failures
        self._is_after_commit = after_commit

    def repair(self) -> None:
        """From now on every transaction succeeds."""
        self._failures.clear()

    def carry_out(
        self, transaction: Callable[[], list[OperationResult]], on_unknown_outcome: Callable[[], None]
    ) -> list[OperationResult]:
        """Carry out a transaction, unless it is to fail. Raises StoreUnavailableError."""
        fails = bool(self._failures) and self._failures.pop(0)
        if fails and not self._is_after_commit:
            raise self._failure("before its commit")
        results = transaction()
        if fails:
            on_unknown_outcome()
            raise self._failure("after its commit")
        return results

    def _failure(self, when: str) -> StoreUnavailableError:
        self._world.disk.has_refused = True
        self._world.trace(f"a transaction of the metadata store fails {when}")
        return StoreUnavailableError("simulated failure of the metadata store")

    def pause_s(self) -> float:
        """The time for which a session is disconnected."""
        return self._random.uniform(0.05, 0.5)


class _Session(MemoryMetadataStore):
    """A session in which the process may die before and after each commit.

    While the outcome of a change is unknown it takes no other, as the embedded store does: what was decided on might be
    made twice.
    """

    metadata: SimulatedMetadata
    world: "World"
    reactor: "ProcessReactor"
    is_connected = True

    def _carry_out(self, operations: Sequence[Operation]) -> list[OperationResult]:
        if not self.reactor.is_alive:
            raise SimulatedCrash("metadata")
        if not self.is_connected:
            raise StoreUnavailableError("the outcome of the last change is not known yet")
        self.world.disk.before("commit", "metadata")
        carry_out = super()._carry_out
        results = self.metadata.carry_out(lambda: carry_out(operations), self._lose_contact)
        self.world.disk.before("committed", "metadata")
        return results

    def _lose_contact(self) -> None:
        """Disconnect for a while: whoever listens looks afterwards what has become of a change."""
        self.is_connected = False
        self._notify(SessionEvent.DISCONNECTED)
        self.reactor.callLater(self.metadata.pause_s(), self._regain_contact)

    def _regain_contact(self) -> None:
        self.is_connected = True
        self._notify(SessionEvent.CONNECTED)

    def _notify(self, event: SessionEvent) -> None:
        for listener in list(self._session_listeners):
            listener(event)
