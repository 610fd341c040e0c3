"""kazoo's requests, results and errors, translated from and to those of the metadata store."""

from collections.abc import Sequence
from typing import Final, Protocol, cast

from kazoo import exceptions
from kazoo.protocol import serialization

from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    Delete,
    MetadataStoreError,
    NoChildrenForEphemeralsError,
    Node,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    SessionExpiredError,
    SetData,
    StoreUnavailableError,
    TransactionError,
    TransactionTooLargeError,
    operation_bytes,
)
from odradek.server.stores.zookeeper.acls import find_acls
from odradek.server.stores.zookeeper.client import Kazoo, KazooWatcher, PendingResult, Send

MAX_REQUEST_BYTES: Final = 1_000_000
"""Limit of a transaction. ZooKeeper closes the connection at a request above jute.maxbuffer, 1 MB by default.

A client that sends it again, as Apache Kafka's controller does, never gets a response.
"""

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2
ERRORS: Final = (
    (exceptions.NoNodeError, NoNodeError),
    (exceptions.NodeExistsError, NodeExistsError),
    (exceptions.BadVersionError, BadVersionError),
    (exceptions.NotEmptyError, NotEmptyError),
    (exceptions.NoChildrenForEphemeralsError, NoChildrenForEphemeralsError),
)
"""kazoo's errors, and those of the metadata store."""

_ROLLED_BACK: Final = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""Results of the operations before and after the rejected one."""


class Stat(Protocol):
    """kazoo's ZnodeStat."""

    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeralOwner: int
    numChildren: int


def get(path: str, watcher: KazooWatcher | None) -> Send:
    """Return a request for a node."""
    return lambda kazoo: kazoo.get_async(path, watcher)


def get_many(paths: Sequence[str]) -> Send:
    """Return a request for nodes, without watches.

    A server before ZooKeeper 3.6 responds with UnimplementedError, and closes the connection, but not the session.
    """
    return lambda kazoo: kazoo.get_many_async(paths)


def exists(path: str, watcher: KazooWatcher | None) -> Send:
    """Return a request for a node's stat."""
    return lambda kazoo: kazoo.exists_async(path, watcher)


def get_children(path: str, watcher: KazooWatcher | None) -> Send:
    """Return a request for the names of a node's children."""
    return lambda kazoo: kazoo.get_children_async(path, watcher, True)


def transaction(operations: Sequence[Operation], chroot: str = "", *, has_acls: bool = False) -> Send:
    """Return a request to execute all operations, whose paths have the chroot. Raises TransactionTooLargeError.

    has_acls: see `ZooKeeperSettings`
    """
    check_size(operations)
    converted = [_convert(operation, chroot, has_acls) for operation in operations]

    def send(kazoo: Kazoo) -> PendingResult:
        request = kazoo.transaction()
        request.operations += converted
        return request.commit_async()

    return send


def check_size(operations: Sequence[Operation], room_bytes: int = 0) -> None:
    """Raise TransactionTooLargeError if ZooKeeper does not accept these operations and `room_bytes` together."""
    size_bytes = sum(map(operation_bytes, operations)) + room_bytes
    if size_bytes > MAX_REQUEST_BYTES:
        raise TransactionTooLargeError(
            f"a transaction of {len(operations)} operations has {size_bytes} bytes; ZooKeeper accepts about 1 MB "
            "(jute.maxbuffer)"
        )


def _convert(operation: Operation, chroot: str, has_acls: bool) -> object:
    """Return kazoo's request. Its class, because the methods of kazoo's transactions replace null data by empty."""
    if isinstance(operation, Create):
        flags = operation.ephemeral * EPHEMERAL | operation.sequential * SEQUENTIAL
        acls = find_acls(operation.path.removeprefix(chroot), has_acls=has_acls)
        return serialization.Create(operation.path, operation.data, acls, flags)
    if isinstance(operation, SetData):
        return serialization.SetData(operation.path, operation.data, operation.version)
    if isinstance(operation, Delete):
        return serialization.Delete(operation.path, operation.version)
    return serialization.CheckVersion(operation.path, operation.version)


def read_results(operations: Sequence[Operation], results: object, chroot: str) -> list[OperationResult]:
    """Return the results of a transaction. kazoo returns errors instead of raising them. Raises TransactionError."""
    given = cast(list[object], results)
    rejected = [
        index
        for index, result in enumerate(given)
        if isinstance(result, Exception) and not isinstance(result, _ROLLED_BACK)
    ]
    if rejected:
        [index, *_] = rejected
        error = given[index]
        assert isinstance(error, Exception)
        raise TransactionError(index, translate_error(error, operations[index].path.removeprefix(chroot)))
    return [_read_result(operation, result, chroot) for operation, result in zip(operations, given, strict=True)]


def _read_result(operation: Operation, result: object, chroot: str) -> OperationResult:
    if isinstance(operation, Create):
        return cast(str, result).removeprefix(chroot)
    if isinstance(operation, SetData):
        return read_stat(result)
    return None


def read_node(result: object) -> Node:
    """Return the result of `get`."""
    data, stat = cast(tuple[bytes | None, object], result)
    return Node(data, read_stat(stat))


def read_nodes(result: object, paths: Sequence[str]) -> list[Node | None]:
    """Return the result of `get_many`. Raises MetadataStoreError if one of the nodes could not be read."""
    nodes: list[Node | None] = []
    for path, one in zip(paths, cast(list[object], result), strict=True):
        if isinstance(one, Exception):
            raise translate_error(one, path)
        nodes.append(None if one is None else read_node(one))
    return nodes


def read_stat(result: object) -> NodeStat:
    """Return a stat."""
    stat = cast(Stat, result)
    return NodeStat(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.numChildren,
    )


def read_children(result: object) -> tuple[list[str], int]:
    """Return the sorted result of `get_children`, and the id of the transaction that last changed the list."""
    names, stat = cast(tuple[list[str], Stat], result)
    return sorted(names), stat.pzxid


def translate_error(error: Exception, path: str) -> MetadataStoreError:
    """Return the metadata store's error for an error of kazoo. An error of the store itself is returned unchanged."""
    if isinstance(error, MetadataStoreError):
        return error
    for theirs, ours in ERRORS:
        if isinstance(error, theirs):
            return ours(path)
    if isinstance(error, exceptions.SessionExpiredError):
        return SessionExpiredError("the session has ended")
    if isinstance(error, exceptions.NoAuthError):
        return StoreUnavailableError(
            f"ZooKeeper denies access to {path}; authenticate as the user that created it (zookeeper.sasl.jaas.config, "
            "zookeeper.ssl.keystore.location), or give everyone all permissions on the nodes of the cluster (setAcl -R "
            "<chroot> world:anyone:cdrwa)"
        )
    return StoreUnavailableError(f"ZooKeeper failed to execute a request for {path}: {type(error).__name__} {error}")
