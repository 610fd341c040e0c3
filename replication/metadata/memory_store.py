"""Metadata store in memory, for tests and for simulated clusters, whose brokers share one tree."""

from collections.abc import Callable, Sequence

from odradek.replication.metadata.store import (
    Operation,
    OperationResult,
    SessionEvent,
    TransactionTooLargeError,
    operation_bytes,
)
from odradek.replication.metadata.znode_store import NodeTable, Watches, Znode, ZnodeStore, parent_of


class MemoryNodeTable(NodeTable):
    """Nodes in a dictionary. A transaction saves the nodes that it replaces, for a rollback."""

    def __init__(self) -> None:
        self._records: dict[str, Znode] = {"/": Znode(None, 0, 0, 0, 0)}
        self._names: dict[str, set[str]] = {"/": set()}
        self._replaced: dict[str, Znode | None] = {}
        self._last_transaction_id = 0

    def load(self, path: str) -> Znode | None:
        record = self._records.get(path)
        return None if record is None else record.copy()

    def children(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def ephemerals(self, session_id: int | None) -> list[str]:
        paths = [
            path
            for path, record in self._records.items()
            if record.ephemeral_owner and session_id in (None, record.ephemeral_owner)
        ]
        return sorted(paths, reverse=True)

    def begin(self) -> int:
        self._replaced = {}
        return self._last_transaction_id + 1

    def put(self, path: str, record: Znode) -> None:
        self._replaced.setdefault(path, self._records.get(path))
        self._restore(path, record)

    def remove(self, path: str) -> None:
        self._replaced.setdefault(path, self._records.get(path))
        self._restore(path, None)

    def _restore(self, path: str, record: Znode | None) -> None:
        name = path.rpartition("/")[2]
        if record is None:
            del self._records[path]
            self._names[parent_of(path)].discard(name)
            del self._names[path]
            return
        if path not in self._records and path != "/":
            self._names.setdefault(parent_of(path), set()).add(name)
            self._names.setdefault(path, set())
        self._records[path] = record

    def commit(self) -> None:
        self._last_transaction_id += 1
        self._replaced = {}

    def roll_back(self) -> None:
        for path, record in reversed(self._replaced.items()):
            if record is not None or path in self._records:
                self._restore(path, record)
        self._replaced = {}


class MemoryMetadataServer:
    """A tree that several sessions share. `expire` ends a session like a session timeout.

    max_transaction_bytes: limit of a transaction, as ZooKeeper has one; None for no limit
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0, max_transaction_bytes: int | None = None) -> None:
        self.max_transaction_bytes = max_transaction_bytes
        self._table = MemoryNodeTable()
        self._watches = Watches()
        self._now_ms = now_ms
        self._last_session_id = 0

    def connect(self) -> "MemoryMetadataStore":
        """Return a store object with a new session."""
        return MemoryMetadataStore(self, self.new_session_id())

    def new_session_id(self) -> int:
        """Return the id of a new session."""
        self._last_session_id += 1
        return self._last_session_id

    def expire(self, store: "MemoryMetadataStore") -> None:
        """Expire a session and inform its listeners."""
        store.end_session(event=SessionEvent.EXPIRED)

    @property
    def parts(self) -> tuple[NodeTable, Watches, Callable[[], int]]:
        return self._table, self._watches, self._now_ms


class MemoryMetadataStore(ZnodeStore):
    """A session with a tree in memory; without a server, with its own tree."""

    def __init__(self, server: MemoryMetadataServer | None = None, session_id: int = 1) -> None:
        self._server = server or MemoryMetadataServer()
        table, watches, now_ms = self._server.parts
        super().__init__(table, watches, session_id, now_ms)

    def check_size(self, operations: Sequence[Operation], room_bytes: int = 0) -> None:
        limit = self._server.max_transaction_bytes
        if limit is not None and (size_bytes := sum(map(operation_bytes, operations)) + room_bytes) > limit:
            raise TransactionTooLargeError(f"a transaction has {size_bytes} bytes, of at most {limit}")

    async def transaction(self, operations: Sequence[Operation]) -> list[OperationResult]:
        self.check_size(operations)
        return await super().transaction(operations)

    async def renew(self) -> None:
        if self._is_over:
            self.session_id = self._server.new_session_id()
            self._is_over = False
