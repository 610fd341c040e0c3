"""Outcome of a write that a connection loss interrupted, and that was rejected when it was sent again.

The first attempt may have succeeded, and may be the reason of the rejection. The nodes are read and compared with what
the write would have left:

- Create: the node has the data, version 0, and is owned by this session if it is ephemeral.
- SetData: the node has the data, and the version after the expected one. Without an expected version the data decides.
- Delete: the node does not exist.
- Check has no effect of its own, so that a failed check does not prove that the first attempt was rejected.
- A sequential Create cannot be recognized. It is created twice if the first attempt had succeeded and the second one
  does too; if the second one is rejected, the rejection is the result.

If all nodes match, the write has succeeded: another writer that left the same nodes has made the same change. Otherwise
the rejection is the result, and the caller reads the nodes again, as after any lost race.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from odradek.replication.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    OperationResult,
    SetData,
)


class _Left(NamedTuple):
    """A node that a transaction leaves. None for a version and an owner that are not determined."""

    data: bytes | None
    version: int | None
    owner: int | None


def changed_paths(operations: Sequence[Operation]) -> list[str]:
    """Return the paths whose nodes decide; empty if they cannot."""
    if any(isinstance(operation, Create) and operation.sequential for operation in operations):
        return []
    return list(dict.fromkeys(one.path for one in operations if not isinstance(one, Check)))


def has_succeeded(operations: Sequence[Operation], nodes: Mapping[str, Node | None], session_id: int) -> bool:
    """Return whether `nodes` (None for a missing one) are those that the operations leave."""
    left: dict[str, _Left | None] = {}
    for operation in operations:
        path = operation.path
        if isinstance(operation, Create):
            left[path] = _Left(operation.data, 0, session_id if operation.ephemeral else 0)
        elif isinstance(operation, SetData):
            before = left.get(path)
            version = None if before is None else before.version
            if operation.version != ANY_VERSION:
                version = operation.version
            left[path] = _Left(
                operation.data, None if version is None else version + 1, None if before is None else before.owner
            )
        elif isinstance(operation, Delete):
            left[path] = None
    return bool(left) and all(_matches(nodes[path], expected) for path, expected in left.items())


def _matches(node: Node | None, expected: _Left | None) -> bool:
    if node is None or expected is None:
        return node is None and expected is None
    return (
        node.data == expected.data
        and expected.version in (None, node.stat.version)
        and expected.owner in (None, node.stat.ephemeral_owner)
    )


def make_results(operations: Sequence[Operation], nodes: Mapping[str, Node | None]) -> list[OperationResult]:
    """Return the results of operations that have succeeded."""
    return [_make_result(operation, nodes) for operation in operations]


def _make_result(operation: Operation, nodes: Mapping[str, Node | None]) -> OperationResult:
    if isinstance(operation, Create):
        return operation.path
    if isinstance(operation, SetData):
        node = nodes[operation.path]
        return None if node is None else node.stat
    return None
