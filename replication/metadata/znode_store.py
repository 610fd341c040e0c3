"""ZooKeeper's semantics over a table of nodes.

`NodeTable` is specific to an embedded store: the storage of nodes, and the durability of transactions. `ZnodeStore`
implements what all embedded stores share: versions, sequences, ephemeral nodes, watches and transactions.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from odradek.replication.metadata.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NoChildrenForEphemeralsError,
    Node,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    Pacing,
    SessionEvent,
    SessionExpiredError,
    SessionListener,
    SetData,
    StoreUnavailableError,
    TransactionError,
    Waiter,
    Watcher,
    WatchEvent,
    WatchKind,
)

_MAX_UNPACED_OPERATIONS: Final = 100
"""A larger transaction is executed in steps if the store has a pacing. So many operations take about 2 ms."""


class Znode:
    """A node in a table. `creations` is the number of children ever created, and so the next sequence number."""

    __slots__ = (
        "child_count", "created_id", "created_ms", "creations", "data", "ephemeral_owner", "modified_id",
        "modified_ms", "version",
    )  # fmt: skip

    def __init__(
        self,
        data: bytes | None,
        created_id: int,
        modified_id: int,
        created_ms: int,
        modified_ms: int,
        version: int = 0,
        ephemeral_owner: int = 0,
        creations: int = 0,
        child_count: int = 0,
    ) -> None:
        self.data = data
        self.created_id = created_id
        self.modified_id = modified_id
        self.created_ms = created_ms
        self.modified_ms = modified_ms
        self.version = version
        self.ephemeral_owner = ephemeral_owner
        self.creations = creations
        self.child_count = child_count

    @property
    def stat(self) -> NodeStat:
        return NodeStat(
            self.created_id,
            self.modified_id,
            self.created_ms,
            self.modified_ms,
            self.version,
            self.creations * 2 - self.child_count,
            self.ephemeral_owner,
            self.child_count,
        )

    def copy(self) -> "Znode":
        return Znode(
            self.data,
            self.created_id,
            self.modified_id,
            self.created_ms,
            self.modified_ms,
            self.version,
            self.ephemeral_owner,
            self.creations,
            self.child_count,
        )


class NodeTable(ABC):
    """Storage of nodes by path. The root "/" always exists.

    `begin` starts a transaction of `put` and `remove`. `commit` makes it durable before it returns, or raises
    StoreUnavailableError without a change of the table; `roll_back` discards it.
    """

    @abstractmethod
    def load(self, path: str) -> Znode | None:
        """Return a copy of the node, including changes of the transaction in progress; None if there is none."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Return the names of the children, sorted."""

    @abstractmethod
    def ephemerals(self, session_id: int | None) -> list[str]:
        """Return the paths of the ephemeral nodes of a session, or of all sessions (None), deepest first."""

    @abstractmethod
    def begin(self) -> int:
        """Start a transaction and return its number, which is larger than all earlier ones."""

    @abstractmethod
    def put(self, path: str, record: Znode) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None: ...

    def prepare_commit(self) -> Generator[None, None, None]:
        """Do those parts of `commit` that can be divided into steps. Raises StoreUnavailableError."""
        yield from ()

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def roll_back(self) -> None: ...


class Watches:
    """The watches on a tree. Each fires once."""

    __slots__ = ("_child_watches", "_data_watches")

    def __init__(self) -> None:
        self._data_watches: dict[str, list[tuple[int, Watcher]]] = {}
        self._child_watches: dict[str, list[tuple[int, Watcher]]] = {}

    def on_data(self, path: str, session_id: int, watcher: Watcher) -> None:
        self._add(self._data_watches, path, session_id, watcher)

    def on_children(self, path: str, session_id: int, watcher: Watcher) -> None:
        self._add(self._child_watches, path, session_id, watcher)

    def _add(
        self, watches: dict[str, list[tuple[int, Watcher]]], path: str, session_id: int, watcher: Watcher
    ) -> None:
        entries = watches.setdefault(path, [])
        if (session_id, watcher) not in entries:
            entries.append((session_id, watcher))

    def drop_session(self, session_id: int) -> None:
        for watches in (self._data_watches, self._child_watches):
            for path in list(watches):
                kept = [entry for entry in watches[path] if entry[0] != session_id]
                if kept:
                    watches[path] = kept
                else:
                    del watches[path]

    def fire(self, events: Iterable[WatchEvent]) -> None:
        for event in events if self._data_watches or self._child_watches else ():
            watchers: list[Watcher] = []
            if event.kind is not WatchKind.CHILDREN:
                watchers += [watcher for _, watcher in self._data_watches.pop(event.path, ())]
            if event.kind in (WatchKind.CHILDREN, WatchKind.DELETED):
                watchers += [watcher for _, watcher in self._child_watches.pop(event.path, ())]
            for watcher in dict.fromkeys(watchers):
                watcher(event)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def check_path(path: str) -> None:
    """Raise ValueError for a path that ZooKeeper does not accept."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError(f"invalid node path: {path!r}")
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise ValueError(f"invalid node path: {path!r}")


class Change:
    """Execution of the operations of a transaction on a table, and the resulting watch events."""

    __slots__ = ("_now_ms", "_session_id", "_table", "events", "transaction_id")

    def __init__(self, table: NodeTable, transaction_id: int, session_id: int, now_ms: int) -> None:
        self._table = table
        self.transaction_id = transaction_id
        self._session_id = session_id
        self._now_ms = now_ms
        self.events: list[WatchEvent] = []

    def carry_out(self, operation: Operation) -> OperationResult:
        check_path(operation.path)
        if isinstance(operation, Create):
            return self._create(operation)
        if isinstance(operation, SetData):
            return self._set(operation)
        if isinstance(operation, Delete):
            self.delete(operation.path, operation.version)
            return None
        self._expect(operation.path, operation.version)
        return None

    def _create(self, operation: Create) -> str:
        parent_path = parent_of(operation.path)
        parent = self._table.load(parent_path)
        if parent is None:
            raise NoNodeError(parent_path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemeralsError(parent_path)
        path = operation.path
        if operation.sequential:
            path = f"{path}{parent.creations:010d}"
        if self._table.load(path) is not None:
            raise NodeExistsError(path)
        owner = self._session_id if operation.ephemeral else 0
        number, now_ms = self.transaction_id, self._now_ms
        self._table.put(path, Znode(operation.data, number, number, now_ms, now_ms, ephemeral_owner=owner))
        parent.creations += 1
        parent.child_count += 1
        self._table.put(parent_path, parent)
        self.events += (WatchEvent(WatchKind.CREATED, path), WatchEvent(WatchKind.CHILDREN, parent_path))
        return path

    def _set(self, operation: SetData) -> NodeStat:
        record = self._expect(operation.path, operation.version)
        record.data = operation.data
        record.version += 1
        record.modified_id = self.transaction_id
        record.modified_ms = self._now_ms
        self._table.put(operation.path, record)
        self.events.append(WatchEvent(WatchKind.CHANGED, operation.path))
        return record.stat

    def delete(self, path: str, version: int) -> None:
        record = self._expect(path, version)
        if record.child_count:
            raise NotEmptyError(path)
        parent_path = parent_of(path)
        parent = self._table.load(parent_path)
        if path == "/" or parent is None:
            raise MetadataStoreError(f"cannot delete {path}")
        self._table.remove(path)
        parent.child_count -= 1
        self._table.put(parent_path, parent)
        self.events += (WatchEvent(WatchKind.DELETED, path), WatchEvent(WatchKind.CHILDREN, parent_path))

    def _expect(self, path: str, version: int) -> Znode:
        record = self._table.load(path)
        if record is None:
            raise NoNodeError(path)
        if version not in (ANY_VERSION, record.version):
            raise BadVersionError(f"{path} has version {record.version}, not {version}")
        return record


class ZnodeStore(MetadataStore):
    """A session with a table of nodes and its watches.

    Methods suspend only if a store sets `_pacing`: a transaction is then committed in a thread, and the operations of a
    large one are executed in steps. Other calls wait for its end and are admitted in their order.

    Watches fire after a change is durable and before the call that made it returns. `now_ms` is the wall clock.
    """

    def __init__(self, table: NodeTable, watches: Watches, session_id: int, now_ms: Callable[[], int]) -> None:
        self.session_id = session_id
        self._table = table
        self._watches = watches
        self._now_ms = now_ms
        self._session_listeners: list[SessionListener] = []
        self._is_over = False
        self._pacing: Pacing | None = None
        # Callers that wait for the end of the transaction in progress or for earlier callers; None if there are none.
        self._waiting: deque[Waiter] | None = None

    async def ready(self) -> None:
        """Return when no transaction is in progress. The caller must not suspend while it uses the table."""
        while self._waiting is not None:
            assert self._pacing is not None
            waiter = self._pacing.waiter()
            self._waiting.append(waiter)
            await waiter

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        result = await self._do(Create(path, data, ephemeral, sequential))
        assert isinstance(result, str)
        return result

    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        await self.ready()
        node = self._read(path, watch)
        if node is None:
            raise NoNodeError(path)
        return node

    async def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[Node | None]:
        await self.ready()
        return [self._read(path, watch) for path in paths]

    def _read(self, path: str, watch: Watcher | None) -> Node | None:
        self._check_session()
        record = self._table.load(path)
        if record is None:
            return None
        if watch is not None:
            self._watches.on_data(path, self.session_id, watch)
        return Node(record.data, record.stat)

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> NodeStat:
        result = await self._do(SetData(path, data, version))
        assert isinstance(result, NodeStat)
        return result

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._do(Delete(path, version))

    async def exists(self, path: str, watch: Watcher | None = None) -> NodeStat | None:
        await self.ready()
        self._check_session()
        record = self._table.load(path)
        if watch is not None:
            self._watches.on_data(path, self.session_id, watch)
        return None if record is None else record.stat

    async def get_children(self, path: str, watch: Watcher | None = None) -> list[str]:
        await self.ready()
        self._check_session()
        if self._table.load(path) is None:
            raise NoNodeError(path)
        if watch is not None:
            self._watches.on_children(path, self.session_id, watch)
        return self._table.children(path)

    async def transaction(self, operations: Sequence[Operation]) -> list[OperationResult]:
        await self.ready()
        if self._pacing is None:
            return self._carry_out(operations)
        self._waiting = deque()
        try:
            return await self._carry_out_paced(operations, self._pacing)
        finally:
            if self._waiting:
                # Later, so that this transaction's caller continues before the waiting callers.
                self._pacing.soon(self._admit)
            else:
                self._waiting = None

    def _admit(self) -> None:
        """Resume the first waiting caller, and the others later, before any new caller."""
        waiting, self._waiting = self._waiting, None
        assert waiting
        waiting.popleft().callback(None)
        if self._waiting is not None:
            # The caller has begun another transaction.
            self._waiting.extendleft(reversed(waiting))
        elif waiting:
            assert self._pacing is not None
            self._waiting = waiting
            self._pacing.soon(self._admit)

    def add_session_listener(self, listener: SessionListener) -> None:
        self._session_listeners.append(listener)

    async def close(self) -> None:
        await self.ready()
        if not self._is_over:
            self.end_session()

    def _notify(self, event: SessionEvent) -> None:
        for listener in list(self._session_listeners):
            listener(event)

    def end_session(self, *, event: SessionEvent | None = None) -> None:
        """End the session, closed or expired, and delete its ephemeral nodes."""
        self._is_over = True
        self._watches.drop_session(self.session_id)
        if self._table.ephemerals(self.session_id):
            delete_ephemerals(self._table, self._watches, self.session_id, self._now_ms())
        if event is not None:
            self._notify(event)

    def _check_session(self) -> None:
        if self._is_over:
            raise SessionExpiredError(f"session {self.session_id} has ended")

    async def _do(self, operation: Operation) -> OperationResult:
        try:
            return (await self.transaction((operation,)))[0]
        except TransactionError as error:
            raise error.cause from None

    def _carry_out(self, operations: Sequence[Operation]) -> list[OperationResult]:
        change = self._begin_change()
        results: list[OperationResult] = []
        try:
            for operation in operations:
                results.append(change.carry_out(operation))
        except BaseException as error:
            self._roll_back(error, len(results))
            raise
        self._table.commit()
        self.last_transaction_id = change.transaction_id
        self._watches.fire(change.events)
        return results

    async def _carry_out_paced(self, operations: Sequence[Operation], pacing: Pacing) -> list[OperationResult]:
        """Execute the operations, many of them in steps, and commit in a thread."""
        change = self._begin_change()
        results: list[OperationResult] = []

        def steps() -> Generator[None, None, None]:
            for operation in operations:
                results.append(change.carry_out(operation))
                yield
            yield from self._table.prepare_commit()

        try:
            if len(operations) > _MAX_UNPACED_OPERATIONS:
                await pacing.run(steps())
            else:
                deque(steps(), maxlen=0)
        except BaseException as error:
            self._roll_back(error, len(results))
            raise
        await pacing.in_thread(self._table.commit)
        self.last_transaction_id = change.transaction_id
        self._watches.fire(change.events)
        return results

    def _begin_change(self) -> Change:
        self._check_session()
        return Change(self._table, self._table.begin(), self.session_id, self._now_ms())

    def _roll_back(self, error: BaseException, index: int) -> None:
        """Roll back a transaction whose operation `index` failed. Raises TransactionError if it was rejected."""
        self._table.roll_back()
        if isinstance(error, MetadataStoreError) and not isinstance(error, StoreUnavailableError):
            raise TransactionError(index, error) from error


def delete_ephemerals(table: NodeTable, watches: Watches, session_id: int | None, now_ms: int) -> int:
    """Delete the ephemeral nodes of a session (None: of all) in one transaction, and return its number."""
    number = table.begin()
    try:
        change = Change(table, number, session_id or 0, now_ms)
        for path in table.ephemerals(session_id):
            change.delete(path, ANY_VERSION)
    except BaseException:
        table.roll_back()
        raise
    table.commit()
    watches.fire(change.events)
    return number


__all__ = ["Check", "NodeTable", "Watches", "Znode", "ZnodeStore", "delete_ephemerals", "parent_of"]
