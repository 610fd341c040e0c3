"""Metrics of the group coordinators and transaction coordinators on this broker."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from odradek.coordinator.groups.classic.group import GroupState
from odradek.server.metrics.declaration import Collected, Family, gauge, labels, own_gauge

if TYPE_CHECKING:
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime

_GROUPS: Final = "kafka.coordinator.group:type=GroupMetadataManager"

GROUPS: Final = gauge(f"{_GROUPS},name=NumGroups", "Groups whose coordinator is this broker.")
OFFSETS: Final = gauge(f"{_GROUPS},name=NumOffsets", "Committed offsets of these groups.")
BY_STATE: Final = {
    state: gauge(f"{_GROUPS},name=NumGroups{state.value}", f"Groups in the state {state.value}.")
    for state in GroupState
}
TRANSACTIONS: Final = own_gauge("transactions", "Transactional ids whose coordinator is this broker, by state.")

METRICS: Final = (GROUPS, OFFSETS, *BY_STATE.values(), TRANSACTIONS)


def collect_groups(runtime: "GroupCoordinatorRuntime | None") -> Collected:
    """Return the metrics of groups. Before the first request for a group there is no runtime."""
    states: Counter[GroupState] = Counter()
    offsets = 0
    for shard in [] if runtime is None else runtime.shards():
        counts = yield from shard.count_groups()
        states += counts.states
        offsets += counts.offsets
    yield Family(GROUPS, [("", sum(states.values()))])
    yield Family(OFFSETS, [("", offsets)])
    for state, metric in BY_STATE.items():
        yield Family(metric, [("", states[state])])


def collect_transactions(runtime: "TransactionCoordinatorRuntime | None") -> Collected:
    """Return the metrics of transactions."""
    states: Counter[str] = Counter()
    for shard in [] if runtime is None else runtime.shards():
        states += yield from shard.count()
    yield Family(TRANSACTIONS, [(labels(state=state), count) for state, count in states.items()])
