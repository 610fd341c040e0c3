"""Watches of a session.

kazoo drops all watches when the connection is lost. They are therefore kept here. After a reconnection each watched
node is read again, which sets the watch on the new connection, and its watchers are called if the node was changed in
the meantime. kazoo gets one function as its watcher for all paths, so that a path is watched once.
"""

from typing import NamedTuple

from odradek.replication.metadata.store import Watcher, WatchEvent, WatchKind

MISSING = 0
"""The transaction id of a node that does not exist."""


class Watched(NamedTuple):
    """The watchers of a node's data or children, and the id of the last change that they have seen."""

    changed_id: int
    watchers: dict[Watcher, None]


class WatchTable:
    """The watchers of data and of children, by path."""

    def __init__(self) -> None:
        self.data: dict[str, Watched] = {}
        self.children: dict[str, Watched] = {}

    def on_data(self, path: str, watcher: Watcher, changed_id: int) -> None:
        """Watch a node's data, or its creation. `changed_id` is the id of the read node's last change, or MISSING."""
        self.data.setdefault(path, Watched(changed_id, {})).watchers[watcher] = None

    def on_children(self, path: str, watcher: Watcher, changed_id: int) -> None:
        """Watch the list of a node's children."""
        self.children.setdefault(path, Watched(changed_id, {})).watchers[watcher] = None

    def clear(self) -> None:
        """Drop all watches."""
        self.data.clear()
        self.children.clear()

    def fire(self, event: WatchEvent) -> None:
        """Call the watchers of an event once each, and drop them."""
        watchers: dict[Watcher, None] = {}
        if event.kind is not WatchKind.CHILDREN and event.path in self.data:
            watchers |= self.data.pop(event.path).watchers
        if event.kind in (WatchKind.CHILDREN, WatchKind.DELETED) and event.path in self.children:
            watchers |= self.children.pop(event.path).watchers
        for watcher in watchers:
            watcher(event)

    def check_data(self, path: str, changed_id: int) -> None:
        """Call the watchers of a node's data if it was changed since. `changed_id` is MISSING without the node."""
        watched = self.data.get(path)
        if watched is None or watched.changed_id == changed_id:
            return
        if changed_id == MISSING:
            kind = WatchKind.DELETED
        else:
            kind = WatchKind.CREATED if watched.changed_id == MISSING else WatchKind.CHANGED
        self.fire(WatchEvent(kind, path))

    def check_children(self, path: str, changed_id: int) -> None:
        """Call the watchers of a node's children if the list was changed since, or the node is gone (MISSING)."""
        watched = self.children.get(path)
        if watched is not None and watched.changed_id != changed_id:
            kind = WatchKind.DELETED if changed_id == MISSING else WatchKind.CHILDREN
            self.fire(WatchEvent(kind, path))
