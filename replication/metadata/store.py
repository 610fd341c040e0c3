"""The store of a cluster's metadata: an interface with ZooKeeper's semantics.

A tree of nodes under absolute paths. Each node has data and a version that counts its changes, so that a change can
be made on condition that nobody else made one before. An ephemeral node lives as long as the session that created
it. A watch fires once when a node, or the list of its children, has changed: a hint to read again.

All methods are native coroutines. The embedded stores suspend only for large transactions, and only once they were
given a `Pacing`; before, they can be driven with `run_now`. The one that speaks to a ZooKeeper ensemble does suspend,
and is driven by the server's event loop. Source: ZooKeeper
Programmer's Guide; the layout of the nodes is Kafka's and lives in `znodes`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

ANY_VERSION = -1


class MetadataStoreError(Exception):
    """The store refused an operation or could not carry it out."""


class NoNodeError(MetadataStoreError):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExistsError(MetadataStoreError):
    """The node to be created exists already."""


class BadVersionError(MetadataStoreError):
    """The node was changed since the version that the caller expected."""


class NotEmptyError(MetadataStoreError):
    """The node to be deleted has children."""


class NoChildrenForEphemeralsError(MetadataStoreError):
    """The parent of the node to be created is ephemeral."""


class SessionExpiredError(MetadataStoreError):
    """The session is over and its ephemeral nodes are gone; only `renew` and `close` are of use."""


class StoreUnavailableError(MetadataStoreError, KafkaError):
    """The store cannot be read or written now: its disk or its connection failed. The outcome of the change is unknown.

    A request that needs it is answered with KAFKA_STORAGE_ERROR, which clients retry.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.KAFKA_STORAGE_ERROR, message)

    def __str__(self) -> str:
        return self.message or ""


class StoreDamagedError(StoreUnavailableError):
    """The content of the store is damaged; the message names the place, and what to do."""


class TransactionError(MetadataStoreError):
    """An operation of a transaction was refused, so none was carried out.

    `index` is the number of the refused operation, `cause` says why.
    """

    def __init__(self, index: int, cause: MetadataStoreError) -> None:
        super().__init__(f"operation {index}: {type(cause).__name__} {cause}")
        self.index = index
        self.cause = cause


class NodeStat(NamedTuple):
    """The metadata of a node.

    created_id, modified_id: number of the transaction that created and that last changed it (ZooKeeper's czxid and
    mzxid). version: how often its data was set. child_version: how often its list of children changed.
    ephemeral_owner: session that it lives with, 0 for a persistent node.
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
    """A node's data (None where ZooKeeper has null) and its stat."""

    data: bytes | None
    stat: NodeStat


class Create(NamedTuple):
    """Create a node; with `sequential` ten digits that only grow are appended to the path."""

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
    """Demand that a node exists and has the expected version; changes nothing."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
OperationResult = str | NodeStat | None
"""Of Create the path, of SetData the new stat, else None."""


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
    """A change of a session. A disconnected session may be connected again; an expired one is over."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"


class Waiter(Awaitable[None], Protocol):
    """An awaitable that ends when `callback` is called."""

    def callback(self, result: None, /) -> None: ...


class Pacing(Protocol):
    """Lets a change that takes long share its thread with other work."""

    def run(self, steps: Generator[None, None, T], /) -> Awaitable[T]:
        """Run short steps, with other work between them, to their result."""

    def in_thread(self, work: Callable[[], None], /) -> Awaitable[None]:
        """Do blocking work in another thread. Raises what it raises."""

    def waiter(self) -> Waiter:
        """Return a new waiter."""

    def soon(self, action: Callable[[], None], /) -> None:
        """Call `action` after the work that runs now has ended or waits."""


Watcher = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionEvent], None]


class MetadataStore(ABC):
    """One session with a metadata store.

    Every method raises SessionExpiredError once the session is over and StoreUnavailableError when the store cannot
    be reached. A change that returned is durable: it outlives the death of the process and the loss of power.
    """

    session_id: int
    is_shared: bool = True
    """Whether other sessions may change the nodes: only then watches are of use."""

    @abstractmethod
    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path. Raises NodeExistsError, NoNodeError (no parent)."""

    @abstractmethod
    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        """Return a node; `watch` is called once when it is changed or deleted. Raises NoNodeError."""

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
        """Carry out all operations in their order, or none. Raises TransactionError."""

    def pace(self, pacing: Pacing) -> None:  # noqa: B027 - what most stores do
        """Let large transactions give way to other work. Without a pacing, and in some stores, they do not."""

    async def ready(self) -> None:  # noqa: B027 - no transaction suspends in most stores
        """Return when no transaction is under way.

        What is decided then, and is written in a transaction of a few operations, is decided on what the store has.
        """

    @abstractmethod
    def add_session_listener(self, listener: SessionListener) -> None:
        """Call `listener` at each change of the session."""

    async def renew(self) -> None:  # noqa: B027 - an embedded store's session does not expire
        """Begin a new session if the present one has expired. Raises MetadataStoreError if that is not possible.

        The new session has neither ephemeral nodes nor watches.
        """

    def damaged(self, why: str) -> StoreDamagedError:
        """Return the error for a node whose content is wrong."""
        return StoreDamagedError(f"the metadata store is damaged: {why}")

    @abstractmethod
    async def close(self) -> None:
        """End the session; its ephemeral nodes are deleted. Closing twice does nothing."""

    async def ensure_path(self, path: str) -> None:
        """Create a persistent node without data, and its parents, where they are missing."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:depth])
            if await self.exists(prefix) is None:
                try:
                    await self.create(prefix)
                except NodeExistsError:
                    continue


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that must not suspend. Those of embedded stores do not without a pacing.

    Raises what the coroutine raises, RuntimeError if it suspends.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended, but nothing is there to resume it")
