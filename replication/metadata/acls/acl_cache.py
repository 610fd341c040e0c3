"""The ACLs of the cluster: loaded at start, and read again when a notice points to a change.

Any broker changes ACLs (`replication.controller.acl_changes`), and writes a notice that names the pattern. Source:
AclAuthorizer of Kafka 3.9.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from odradek.protocol.access_control import Operation, Permission, ResourceType
from odradek.replication.metadata.acls import nodes
from odradek.replication.metadata.acls.bindings import (
    NO_ENTRIES,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclEntry,
    AclTable,
    Entries,
    ResourcePattern,
)
from odradek.replication.metadata.change_notices import ChangeNotices, Post, lay_out
from odradek.replication.metadata.loader import NODES_PER_READ, get_children_if_any
from odradek.replication.metadata.store import MetadataStore, Node, StoreDamagedError, WatchEvent
from odradek.replication.pauses import Pause, run_with_pauses

logger = logging.getLogger(__name__)

AclListener = Callable[[AclTable], None]
"""Receives the changed patterns with their entries; a pattern without entries is removed."""

DENY_ALL: Final[Entries] = frozenset({AclEntry(WILDCARD_PRINCIPAL, WILDCARD, Operation.ALL, Permission.DENY)})
"""The entries of a pattern whose node cannot be decoded: they may have denied anything."""


class AclCache:
    """The entries of all patterns that have some. They must not be changed.

    listeners: called after each change, and after `start` with all that differs from before
    """

    def __init__(self, store: MetadataStore, post: Post, pause: Pause) -> None:
        self.acls: dict[ResourcePattern, Entries] = {}
        self.listeners: list[AclListener] = []
        self._store = store
        self._post = post
        self._pause = pause
        literal, prefixed = nodes.LITERAL_TREE, nodes.PREFIXED_TREE
        level = logging.WARNING
        self._notices = (
            ChangeNotices(store, literal.changes, nodes.decode_literal_notice, self._on_notices, level),
            ChangeNotices(store, prefixed.changes, nodes.decode_extended_notice, self._on_notices, level),
        )

    async def start(self) -> None:
        """Create missing nodes, load all ACLs and watch the notices; call it again in a new session.

        Raises MetadataStoreError.
        """
        await lay_out(self._store, nodes.LAYOUT)
        if self._store.is_shared:
            for notices in self._notices:
                await notices.skip()
        found = await self._read(await self._list_patterns())
        removed = dict.fromkeys(self.acls.keys() - found.keys(), NO_ENTRIES)
        self.put({**found, **removed})

    async def follow(self) -> None:
        """Read the patterns to which new notices point; call it again if it failed. Raises MetadataStoreError."""
        changed = [pattern for notices in self._notices for pattern in await notices.read()]
        stored = [pattern for pattern in changed if nodes.can_be_stored(self._store, pattern.name)]
        found = await self._read(stored)
        self.put({pattern: found.get(pattern, NO_ENTRIES) for pattern in stored})
        for notices in self._notices:
            notices.finish()

    def put(self, table: AclTable) -> None:
        """Replace the entries of patterns, and call the listeners if any differ."""
        changed = {
            pattern: entries for pattern, entries in table.items() if entries != self.acls.get(pattern, NO_ENTRIES)
        }
        for pattern, entries in changed.items():
            if entries:
                self.acls[pattern] = entries
            else:
                del self.acls[pattern]
        if changed:
            for listener in self.listeners:
                listener(changed)

    def _on_notices(self, event: WatchEvent) -> None:
        self._post("ACLs changed", self.follow)

    async def _list_patterns(self) -> list[ResourcePattern]:
        patterns = []
        for tree in nodes.TREES:
            for title in await self._store.get_children(tree.root):
                try:
                    resource_type = ResourceType.parse(title)
                except ValueError:
                    logger.warning("ACLs of an unknown resource type are ignored path=%s/%s", tree.root, title)
                    continue
                names = await get_children_if_any(self._store, f"{tree.root}/{title}")
                patterns += [
                    ResourcePattern(resource_type, nodes.name_of(self._store, name), tree.pattern_type)
                    for name in names
                ]
        return patterns

    async def _read(self, patterns: Iterable[ResourcePattern]) -> dict[ResourcePattern, Entries]:
        """Return the entries of those of the patterns that have any."""
        every, found = list(patterns), {}
        for first in range(0, len(every), NODES_PER_READ):
            some = every[first : first + NODES_PER_READ]
            read = await self._store.get_many([nodes.path_of(self._store, pattern) for pattern in some])
            for pattern, node in zip(some, read, strict=True):
                entries = NO_ENTRIES if node is None else await self._decode(pattern, node)
                if entries:
                    found[pattern] = entries
                await self._pause()
        return found

    async def _decode(self, pattern: ResourcePattern, node: Node) -> Entries:
        try:
            return await decode_entries(self._store, pattern, node, self._pause)
        except StoreDamagedError as error:
            if not self._store.is_shared:
                raise
            logger.error("every operation is denied on the resources of a node until it is corrected: %s", error)
            return DENY_ALL


async def decode_entries(store: MetadataStore, pattern: ResourcePattern, node: Node, pause: Pause) -> Entries:
    """Decode the node of a pattern. Raises StoreDamagedError."""
    try:
        return await run_with_pauses(nodes.decode_entries_in_steps(node), pause)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        path = nodes.path_of(store, pattern)
        raise store.damaged(f"its node {path} cannot be decoded: {error!r}") from error
