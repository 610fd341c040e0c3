"""Interface of the metadata store, with ZooKeeper's semantics.

The store is a tree of nodes with absolute paths. Each node has data and a version that is incremented by each change,
for conditional changes. An ephemeral node exists as long as the session that created it. A watch fires once when a node
or the list of its children has changed; its owner reads the node again.

All methods are coroutines. The embedded stores suspend only for transactions, and only with a `Pacing`; without one
they can be run with `run_now`. A store that connects to a ZooKeeper ensemble suspends and is run by the server's event
loop. Source: ZooKeeper Programmer's Guide. The layout of the nodes is Kafka's: see `znodes`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

ANY_VERSION = -1


class MetadataStoreError(Exception):
    """An operation was rejected or failed."""


class NoNodeError(MetadataStoreError):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExistsError(MetadataStoreError):
    """The node to be created exists already."""


class BadVersionError(MetadataStoreError):
    """The node's version is not the expected one, because the node was changed."""


class NotEmptyError(MetadataStoreError):
    """The node to be deleted has children."""


class NoChildrenForEphemeralsError(MetadataStoreError):
    """The parent of the node to be created is ephemeral."""


class SessionExpiredError(MetadataStoreError):
    """The session has ended and its ephemeral nodes are deleted. Only `renew` and `close` may be called."""


class StoreUnavailableError(MetadataStoreError, KafkaError):
    """The store cannot be read or written now: its disk or its connection failed. The outcome of the change is unknown.

    A request that needs the store gets KAFKA_STORAGE_ERROR, after which clients retry.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.KAFKA_STORAGE_ERROR, message)

    def __str__(self) -> str:
        return self.message or ""


class StoreDamagedError(StoreUnavailableError):
    """The content of the store is damaged; the message contains the node and the action to take."""


class TransactionTooLargeError(MetadataStoreError):
    """A transaction has more bytes than the store accepts. It was not sent, so none of its operations was executed."""


class TransactionError(MetadataStoreError):
    """An operation of a transaction was rejected, so none was executed.

    `index` is the position of the rejected operation, `cause` its error. The message of a StoreUnavailableError, which
    contains the node and the remedy, is also that of the transaction.
    """

    def __init__(self, index: int, cause: MetadataStoreError) -> None:
        is_complete = isinstance(cause, StoreUnavailableError)
        super().__init__(str(cause) if is_complete else f"operation {index}: {type(cause).__name__} {cause}")
        self.index = index
        self.cause = cause


class NodeStat(NamedTuple):
    """The metadata of a node.

    created_id, modified_id: number of the transaction that created and that last changed it (ZooKeeper's czxid, mzxid)
    version: number of changes of its data; child_version: number of changes of its list of children
    ephemeral_owner: the session that owns it, 0 for a persistent node
    """

    created_id: int
    modified_id: int
    created_ms: int
    modified_ms: int
    version: int
    child_version: int
    ephemeral_owner: int
    child_count: int


class Node(NamedTuple):
    """A node's data (None for ZooKeeper's null) and its stat."""

    data: bytes | None
    stat: NodeStat


class Create(NamedTuple):
    """Create a node; with `sequential`, an increasing number of ten digits is appended to the path."""

    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Replace a node's data, if its version is the expected one."""

    path: str
    data: bytes | None
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node without children, if its version is the expected one."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Require that a node exists and has the expected version, without a change."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
OperationResult = str | NodeStat | None
"""The path for Create, the new stat for SetData, None for others."""


_OPERATION_BYTES = 64
"""Upper bound of the size of an operation in a request to ZooKeeper, without its path and data."""


def operation_bytes(operation: Operation) -> int:
    """Return the approximate size of an operation in a request to ZooKeeper; it is not larger."""
    data = operation.data if isinstance(operation, Create | SetData) else None
    return _OPERATION_BYTES + len(operation.path) + len(data or b"")


class WatchKind(Enum):
    """The kind of change that fired a watch."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    kind: WatchKind
    path: str


class SessionEvent(Enum):
    """A change of a session. A disconnected session may reconnect; an expired session has ended."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"


class Waiter(Awaitable[None], Protocol):
    """An awaitable that ends when `callback` is called."""

    def callback(self, result: None, /) -> None: ...


class Pacing(Protocol):
    """Divides long changes into steps, with other work between them."""

    def run(self, steps: Generator[None, None, T], /) -> Awaitable[T]:
        """Run short steps, with other work between them; return their result."""

    def in_thread(self, work: Callable[[], None], /) -> Awaitable[None]:
        """Run blocking work in another thread. Raises its exceptions."""

    def waiter(self) -> Waiter:
        """Return a new waiter."""

    def soon(self, action: Callable[[], None], /) -> None:
        """Call `action` after the current work has ended or suspended."""


Watcher = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionEvent], None]


class MetadataStore(ABC):
    """One session with a metadata store.

    Every method raises SessionExpiredError after the end of the session, and StoreUnavailableError if the store cannot
    be accessed. When the method returns, its change is durable: it survives a crash of the process and a power failure.
    """

    session_id: int
    last_transaction_id: int = 0
    """The number of the last transaction of this session; 0 before the first, and if the store does not number them."""
    is_shared: bool = True
    """Other sessions may change the nodes, so that watches are necessary."""

    @abstractmethod
    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path. Raises NodeExistsError, NoNodeError (no parent)."""

    @abstractmethod
    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        """Return a node; `watch` is called once when it is changed or deleted. Raises NoNodeError."""

    @abstractmethod
    async def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[Node | None]:
        """Return nodes in the order of `paths`, None for each that does not exist; `watch` of each node as for `get`.

        No read waits for the result of another. Together they are not atomic.
        """

    @abstractmethod
    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> NodeStat:
        """Replace a node's data. Raises NoNodeError, BadVersionError."""

    @abstractmethod
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises NoNodeError, BadVersionError, NotEmptyError."""

    @abstractmethod
    async def exists(self, path: str, watch: Watcher | None = None) -> NodeStat | None:
        """Return a node's stat, None without one; `watch` is called once when it is created, changed or deleted."""

    @abstractmethod
    async def get_children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """Return the names of a node's children, sorted. Raises NoNodeError.

        `watch` is called once when the list changes or the node is deleted.
        """

    @abstractmethod
    async def transaction(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Execute all operations in order, or none. Raises TransactionError, TransactionTooLargeError."""

    def check_size(self, operations: Sequence[Operation], room_bytes: int = 0) -> None:  # noqa: B027 - embedded stores have no limit
        """Raise TransactionTooLargeError if the store does not accept these operations and `room_bytes` together."""

    def pace(self, pacing: Pacing) -> None:  # noqa: B027 - what most stores do
        """Commit in threads and run large transactions in steps from now on. Some stores ignore this."""

    async def ready(self) -> None:  # noqa: B027 - no transaction suspends in most stores
        """Return when no transaction is in progress.

        A caller that then reads, and writes a small transaction without suspending, bases it on the current content.
        """

    @abstractmethod
    def add_session_listener(self, listener: SessionListener) -> None:
        """Call `listener` at each change of the session."""

    async def renew(self) -> None:  # noqa: B027 - an embedded store's session does not expire
        """Begin a new session if the current one has expired. Raises MetadataStoreError if that is not possible.

        The new session has neither ephemeral nodes nor watches.
        """

    def damaged(self, why: str) -> StoreDamagedError:
        """Return the error for a node with invalid content."""
        return StoreDamagedError(f"the metadata store is damaged: {why}")

    @abstractmethod
    async def close(self) -> None:
        """End the session and delete its ephemeral nodes. A second call has no effect."""

    async def ensure_path(self, path: str) -> None:
        """Create a persistent node without data, and its parents, if they do not exist."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:depth])
            if await self.exists(prefix) is None:
                try:
                    await self.create(prefix)
                except NodeExistsError:
                    continue


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend, as those of embedded stores without a pacing, and return its result.

    Raises the exceptions of the coroutine, and RuntimeError if it suspends.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended in run_now, which cannot resume it")
