"""Paths and contents of the nodes of ACLs, and of the notices of their changes, as in Kafka 3.9.

Sources: ZkAclStore, ZkAclChangeStore, ExtendedAclChangeEvent and AclEntry of Kafka 3.9. The entries of a literal name
are in /kafka-acl/<ResourceType>/<name>, those of a prefix in /kafka-acl-extended/prefixed/<ResourceType>/<name>.
Decoders raise ValueError or KeyError for invalid data.
"""

import re
from collections.abc import Generator
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata import znodes
from odradek.replication.metadata.acls.bindings import RESOURCE_TYPES, AclEntry, Entries, ResourcePattern
from odradek.replication.metadata.store import MetadataStore, Node

C = TypeVar("C", Operation, Permission)

NOTICE_PREFIX: Final = "acl_changes_"
ENTRIES_PER_STEP: Final = 500
"""Entries that are encoded or decoded in one step, in about 1 ms."""
_VERSION: Final = 1


class AclTree(NamedTuple):
    """The nodes of one type of pattern. `changes`: the parent of the notices."""

    pattern_type: PatternType
    root: str
    changes: str


LITERAL_TREE: Final = AclTree(PatternType.LITERAL, "/kafka-acl", "/kafka-acl-changes")
PREFIXED_TREE: Final = AclTree(PatternType.PREFIXED, "/kafka-acl-extended/prefixed", "/kafka-acl-extended-changes")
TREES: Final = (LITERAL_TREE, PREFIXED_TREE)

LAYOUT: Final = (
    "/kafka-acl-extended",
    *(tree.root for tree in TREES),
    *(f"{tree.root}/{resource_type.title}" for tree in TREES for resource_type in RESOURCE_TYPES),
    *(tree.changes for tree in TREES),
)
"""All nodes that exist before the first ACL; a parent before its children."""

# Characters that ZooKeeper refuses in a path, and the separator of its parts.
_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff/]")


def tree_of(pattern: ResourcePattern) -> AclTree:
    """Return the tree that has the node of a pattern."""
    return PREFIXED_TREE if pattern.pattern_type is PatternType.PREFIXED else LITERAL_TREE


def can_be_stored(store: MetadataStore, name: str) -> bool:
    """Return whether a resource name can be part of a path: ZooKeeper's paths contain names without an escape."""
    return not store.is_shared or (name not in (".", "..") and _REFUSED.search(name) is None)


def path_of(store: MetadataStore, pattern: ResourcePattern) -> str:
    """Return the path of the node with a pattern's entries."""
    name = pattern.name if store.is_shared else _escape(pattern.name)
    return f"{tree_of(pattern).root}/{pattern.resource_type.title}/{name}"


def name_of(store: MetadataStore, node_name: str) -> str:
    """Return the name of the pattern whose node has this name."""
    return node_name if store.is_shared else unquote(node_name)


def _escape(name: str) -> str:
    """Return the name of a node of an embedded store, which only this program reads."""
    escaped = name.replace("%", "%25").replace("/", "%2F")
    return escaped.replace(".", "%2E") if name in (".", "..") else escaped


def encode_entries_in_steps(entries: Entries) -> Generator[None, None, bytes]:
    """Encode the entries of a pattern, a small number of them in a defined order."""
    rows: list[bytes] = []
    # A sort of thousands of entries would hold the reactor for too long.
    ordered = iter(sorted(entries) if len(entries) <= ENTRIES_PER_STEP else entries)
    while some := list(islice(ordered, ENTRIES_PER_STEP)):
        rows.append(znodes.encode(list(map(_encode_entry, some)))[1:-1])
        yield
    return b'{"version":%d,"acls":[%b]}' % (_VERSION, b",".join(rows))


def _encode_entry(entry: AclEntry) -> dict[str, str]:
    return {
        "principal": entry.principal,
        "permissionType": entry.permission.title,
        "operation": entry.operation.title,
        "host": entry.host,
    }


def decode_entries_in_steps(node: Node) -> Generator[None, None, Entries]:
    """Decode the entries of a pattern. A name of an operation that is unknown becomes UNKNOWN, which matches none."""
    if not node.data:
        return frozenset()
    value = znodes.decode(node.data)
    if value["version"] != _VERSION:
        raise ValueError(f"unsupported version of ACLs: {value['version']!r}")
    entries = set()
    for number, row in enumerate(value["acls"], 1):
        entries.add(_decode_entry(row))
        if number % ENTRIES_PER_STEP == 0:
            yield
    return frozenset(entries)


def _decode_entry(row: dict[str, Any]) -> AclEntry:
    principal, host = row["principal"], row["host"]
    if not isinstance(principal, str) or ":" not in principal or not isinstance(host, str):
        raise ValueError(f"not a principal and a host: {principal!r}, {host!r}")
    operation = _parse_or_unknown(Operation, row["operation"])
    return AclEntry(principal, host, operation, _parse_or_unknown(Permission, row["permissionType"]))


def _parse_or_unknown(kind: type[C], text: str) -> C:
    try:
        return kind.parse(text)
    except ValueError:
        return kind.from_code(0)


def encode_notice(pattern: ResourcePattern) -> bytes:
    """Encode the notice that the entries of a pattern have changed."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    return znodes.encode(
        {
            "version": _VERSION,
            "resourceType": pattern.resource_type.name,
            "name": pattern.name,
            "patternType": pattern.pattern_type.name,
        }
    )


def decode_literal_notice(node: Node) -> ResourcePattern:
    """Return the literal pattern whose entries have changed."""
    resource_type, colon, name = (node.data or b"").decode().partition(":")
    if not colon:
        raise ValueError("expected ResourceType:ResourceName")
    return ResourcePattern(ResourceType.parse(resource_type), name)


def decode_extended_notice(node: Node) -> ResourcePattern:
    """Return the pattern whose entries have changed."""
    value = znodes.decode(node.data)
    if value["version"] > _VERSION:
        raise ValueError(f"unsupported version of a notice: {value['version']!r}")
    if value["patternType"] != PatternType.PREFIXED.name:
        raise ValueError(f"unsupported pattern type: {value['patternType']!r}")
    return ResourcePattern(ResourceType.parse(value["resourceType"]), str(value["name"]), PatternType.PREFIXED)
