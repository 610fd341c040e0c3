"""Changes of ACLs by any broker, or by a tool.

Of two changes of a pattern at the same time the second is based on the first. A change is in the broker's cache before
the response. Source: AclAuthorizer of Kafka 3.9; a notice and the change of its pattern are one transaction here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from odradek.protocol.access_control import PatternType, ResourceType
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs.nodes import remove_old_notices
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.controller.races import retry_races
from odradek.replication.metadata.acls import nodes
from odradek.replication.metadata.acls.acl_cache import AclCache, decode_entries
from odradek.replication.metadata.acls.bindings import (
    NO_ENTRIES,
    AclBinding,
    AclEntry,
    AclFilter,
    Entries,
    ResourcePattern,
)
from odradek.replication.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    Node,
    Operation,
    SetData,
    TransactionTooLargeError,
)
from odradek.replication.pauses import Pause, in_slices, run_with_pauses

PATTERNS_PER_TRANSACTION: Final = 50
ENTRIES_PER_TRANSACTION: Final = 500
"""Entries that a transaction adds at most: the authorizer applies them in one step, in some ms."""

PATTERNS_PER_STEP: Final = 100

Change = Callable[[ResourcePattern, Entries], Entries]
"""Returns the new entries of a pattern from its current ones; called again if another broker was faster."""


class Deletion(NamedTuple):
    """The result of a filter: the bindings that were deleted, and the error of those that were not."""

    deleted: list[AclBinding]
    error: KafkaError | None


class AclChanges:
    """Writes changes of ACLs to the store and puts them into the cache, one request after another.

    cache: the ACLs that this broker applies
    """

    def __init__(self, store: MetadataStore, cache: AclCache, events: EventLoop, now_ms: Callable[[], int]) -> None:
        self._store = store
        self.cache = cache
        self._events = events
        self._now_ms = now_ms

    async def load(self) -> None:
        """Load all ACLs, in a new session again. Raises MetadataStoreError."""
        await self._events.submit(EventKind.CONFIGURATION, "load ACLs", self.cache.start)

    async def create(self, added: Mapping[ResourcePattern, Set[AclEntry]]) -> dict[ResourcePattern, KafkaError]:
        """Add entries to patterns. Return the errors of the patterns that could not be changed."""

        async def run() -> dict[ResourcePattern, KafkaError]:
            errors: dict[ResourcePattern, KafkaError] = {}
            for some in _divide(added):
                await self._update(some, _add(some), errors)
            return errors

        return await self._events.submit(EventKind.CONFIGURATION, "create ACLs", run)

    def check_name(self, name: str) -> None:
        """Raise KafkaError INVALID_REQUEST if the store cannot have ACLs of a resource name, as ZooKeeper."""
        if not nodes.can_be_stored(self._store, name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"ACL binding contains invalid resource name: {name}")

    async def delete(self, filters: Sequence[AclFilter]) -> list[Deletion]:
        """Delete the bindings that any of the filters selects; return the result of each filter."""

        async def run() -> list[Deletion]:
            return await self._delete(filters)

        return await self._events.submit(EventKind.CONFIGURATION, "delete ACLs", run)

    async def _delete(self, filters: Sequence[AclFilter]) -> list[Deletion]:
        selected = await self._select(filters)
        removed: dict[ResourcePattern, Entries] = {}

        def remove(pattern: ResourcePattern, entries: Entries) -> Entries:
            matching = [filters[number] for number in selected[pattern]]
            found = frozenset(e for e in entries if any(one.matches_entry(e) for one in matching))
            # An attempt before this one may have been made although its connection was lost.
            removed[pattern] = removed.get(pattern, NO_ENTRIES) | found
            return entries - found

        errors: dict[ResourcePattern, KafkaError] = {}
        patterns = list(selected)
        for first in range(0, len(patterns), PATTERNS_PER_TRANSACTION):
            await self._update(patterns[first : first + PATTERNS_PER_TRANSACTION], remove, errors)
        results: list[Deletion] = [Deletion([], None) for _ in filters]
        for pattern, numbers in selected.items():
            await self._pause()
            for number in numbers:
                if pattern in errors:
                    results[number] = results[number]._replace(error=errors[pattern])
                else:
                    entries = filter(filters[number].matches_entry, sorted(removed.get(pattern, NO_ENTRIES)))
                    results[number].deleted.extend(AclBinding(pattern, entry) for entry in entries)
        return results

    async def _select(self, filters: Sequence[AclFilter]) -> dict[ResourcePattern, list[int]]:
        """Return the patterns that filters select, each with the numbers of these filters.

        A pattern that a filter names exactly is included even if the cache does not have it yet.
        """
        selected: dict[ResourcePattern, list[int]] = {}
        for number, one in enumerate(filters):
            named = one.named_patterns()
            is_exact = one.pattern_type is not PatternType.MATCH and one.resource_type is not ResourceType.ANY
            every = list(self.cache.acls) if named is None else named
            async for pattern in in_slices(every, PATTERNS_PER_STEP, self._pause):
                is_selected = is_exact or pattern in self.cache.acls
                if named is None:
                    is_selected = one.matches_pattern(pattern)
                if is_selected and nodes.can_be_stored(self._store, pattern.name):
                    selected.setdefault(pattern, []).append(number)
        return selected

    async def _update(
        self, patterns: Iterable[ResourcePattern], change: Change, errors: dict[ResourcePattern, KafkaError]
    ) -> None:
        """Change the entries of patterns in one transaction; add the error of each pattern that failed."""
        some = list(patterns)
        try:
            await self._update_some(some, change)
        except MetadataStoreError as error:
            errors.update(dict.fromkeys(some, as_kafka_error(error)))
        except KafkaError as error:
            errors.update(dict.fromkeys(some, error))
        await self._pause()

    async def _update_some(self, patterns: Sequence[ResourcePattern], change: Change) -> None:
        try:
            self.cache.put(await retry_races(partial(self._update_once, patterns, change)))
        except TransactionTooLargeError:
            if len(patterns) == 1:
                message = f"the ACLs of {patterns[0]} are larger than a node of the metadata store"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
            middle = len(patterns) // 2
            await self._update_some(patterns[:middle], change)
            await self._update_some(patterns[middle:], change)

    async def _update_once(self, patterns: Sequence[ResourcePattern], change: Change) -> dict[ResourcePattern, Entries]:
        """Execute one transaction; return the entries that the patterns have after it."""
        store, pause = self._store, self._pause
        await store.ready()
        read = await store.get_many([nodes.path_of(store, pattern) for pattern in patterns])
        operations: list[Operation] = []
        after: dict[ResourcePattern, Entries] = {}
        changed = []
        for pattern, node in zip(patterns, read, strict=True):
            before = NO_ENTRIES if node is None else await decode_entries(store, pattern, node, pause)
            entries = after[pattern] = change(pattern, before)
            if entries != before or (node is not None and not entries):
                changed.append(pattern)
                operations.append(await self._change_operation(pattern, node, entries))
        if operations:
            if store.is_shared:
                operations += await self._notices(changed)
            await store.transaction(operations)
        return after

    async def _change_operation(self, pattern: ResourcePattern, node: Node | None, entries: Entries) -> Operation:
        path = nodes.path_of(self._store, pattern)
        if not entries:
            assert node is not None
            return Delete(path, node.stat.version)
        data = await run_with_pauses(nodes.encode_entries_in_steps(entries), self._pause)
        return Create(path, data) if node is None else SetData(path, data, node.stat.version)

    async def _notices(self, patterns: Iterable[ResourcePattern]) -> list[Operation]:
        operations: list[Operation] = []
        roots = set()
        for pattern in patterns:
            root = nodes.tree_of(pattern).changes
            roots.add(root)
            operations.append(Create(f"{root}/{nodes.NOTICE_PREFIX}", nodes.encode_notice(pattern), sequential=True))
        for root in sorted(roots):
            operations += await remove_old_notices(self._store, root, self._now_ms())
        return operations

    @property
    def _pause(self) -> Pause:
        return self._events.executor.pause


def _add(added: Mapping[ResourcePattern, Set[AclEntry]]) -> Change:
    return lambda pattern, entries: entries | added[pattern]


def _divide(
    added: Mapping[ResourcePattern, Set[AclEntry]],
) -> Iterator[dict[ResourcePattern, Set[AclEntry]]]:
    """Divide entries among transactions."""
    some: dict[ResourcePattern, Set[AclEntry]] = {}
    room = ENTRIES_PER_TRANSACTION
    for pattern, entries in added.items():
        rest = iter(entries)
        while part := set(islice(rest, room)):
            some[pattern] = part
            room -= len(part)
            if not room or len(some) == PATTERNS_PER_TRANSACTION:
                yield some
                some, room = {}, ENTRIES_PER_TRANSACTION
    if some:
        yield some
