"""Transactions, and those that hang."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from flask import Blueprint, request

from odradek.tools.console.console import get_arguments, get_console, render
from odradek.tools.console.paging import read_view, select
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.transactions import (
    DescribedTransaction,
    HangingTransaction,
    KnownTransaction,
    describe_transactions,
    find_hanging_transactions,
    list_known_transactions,
)

transactions = Blueprint("transactions", __name__)

_COLUMNS = ("id", "state", "producer", "coordinator")
_DEFAULT_AGE_MIN: Final = 15
"""Kafka's transaction.max.timeout.ms; younger transactions may still end."""

_MOST_AGE_MIN: Final = 100_000
_MOST_DIGITS: Final = 9
_MOST_TOPIC_CHARACTERS: Final = 249


class ShownTransaction(NamedTuple):
    """A transactional id; `described` is None if it ended meanwhile."""

    known: KnownTransaction
    described: DescribedTransaction | None
    open_ms: int | None

    @property
    def is_overdue(self) -> bool:
        """Return whether a transaction is open for longer than its timeout."""
        return self.described is not None and self.open_ms is not None and self.open_ms > self.described.timeout_ms


@transactions.get("/transactions")
def show_list() -> str:
    """List the transactional ids."""
    console = get_console()
    listed, problems = console.read("transactions", _fetch_list)
    keys: dict[str, Any] = {
        "id": lambda one: one.transactional_id,
        "state": lambda one: one.state,
        "producer": lambda one: one.producer_id,
        "coordinator": lambda one: one.coordinator,
    }
    shown = select(listed, read_view(get_arguments(), _COLUMNS), keys, _get_name)
    names = tuple(one.transactional_id for one in shown.rows)
    described = console.read(("transactions", names), lambda cluster: describe_transactions(cluster, names))
    rows = _make_rows(shown.rows, described, console.now_ms())
    return render("transactions.html", shown=shown, rows=rows, problems=problems)


def _fetch_list(cluster: Cluster) -> tuple[list[KnownTransaction], list[str]]:
    """Return the transactional ids, and the problems of brokers that do not answer."""
    problems: list[str] = []
    return list_known_transactions(cluster, problems=problems), problems


def _get_name(one: KnownTransaction) -> str:
    return one.transactional_id


def _make_rows(
    rows: Sequence[KnownTransaction], described: dict[str, DescribedTransaction], now_ms: int
) -> list[ShownTransaction]:
    made = []
    for known in rows:
        found = described.get(known.transactional_id)
        started_ms = None if found is None else found.start_time_ms
        made.append(ShownTransaction(known, found, None if started_ms is None else max(now_ms - started_ms, 0)))
    return made


@transactions.get("/transactions/hanging")
def show_hanging() -> str:
    """Search all partitions, or those of one topic, for hanging transactions."""
    console = get_console()
    topic = request.args.get("topic", "").strip()[:_MOST_TOPIC_CHARACTERS]
    text = request.args.get("age", "")
    is_age = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    age_min = min(int(text), _MOST_AGE_MIN) if is_age else _DEFAULT_AGE_MIN

    def work(cluster: Cluster) -> list[HangingTransaction]:
        found = cluster.fetch_topics([topic] if topic else None)
        leaders = {(one.name or "", each.partition_index): each.leader_id for one in found for each in one.partitions}
        return find_hanging_transactions(cluster, leaders, console.now_ms() - age_min * 60_000)

    hanging = console.read(("hanging", topic, age_min), work)
    return render("hanging.html", hanging=hanging, topic=topic, age_min=age_min)
