"""Generated orders of an hour: mostly in order, some late, some beyond the watermark, one in a hundred invalid."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

TOPIC = "example.orders"
DEAD_LETTERS = "example.orders.dead-letters"
PARTITIONS = 3
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WATERMARK = timedelta(minutes=5)
"""As in orders.toml."""
COUNTRIES = {"DE": 30, "PL": 20, "CZ": 20, "AT": 15, "SK": 10, "FR": 5}
"""Percentage of orders by country."""
BAD_SHARE = 0.01
LATE_SHARE = 0.03
LATEST = timedelta(minutes=4)
"""Within the watermark, with a margin of a minute for partitions that are read at different speeds."""
TOO_LATE_SHARE = 0.02

MinuteOfCountry = tuple[datetime, str]


class Revenue(NamedTuple):
    """The expected row of a minute and country."""

    orders: int
    revenue: Decimal


@dataclass(frozen=True)
class Orders:
    """Keys and values in the order of production, and the number of each kind; an invalid order counts only as such."""

    records: list[tuple[bytes, bytes]]
    bad: int
    late: int
    too_late: int


def make_orders(count: int = 20_000, seed: int = 5) -> Orders:
    """Return the orders of an hour.

    Orders that are too late come with the last fifth and were placed in the first ten minutes. Spark drops rows that
    are older than the watermark of two batches ago, and a batch of orders.toml has eighteen minutes. So these orders
    are older than that watermark for every distribution to batches, and orders that are only late are not.
    """
    chance = random.Random(seed)
    records: list[tuple[bytes, bytes]] = []
    bad = late = too_late = 0
    for number in range(count):
        placed = BEGIN + HOUR * (number / count)
        is_bad = chance.random() < BAD_SHARE
        if number >= count * 0.8 and chance.random() < TOO_LATE_SHARE:
            placed = BEGIN + HOUR / 6 * chance.random()
            too_late += not is_bad
        elif chance.random() < LATE_SHARE:
            placed = max(BEGIN, placed - LATEST * chance.random())
            late += not is_bad
        order: dict[str, Any] = {
            "order_id": number + 1,
            "country": chance.choices(list(COUNTRIES), list(COUNTRIES.values()))[0],
            "amount": chance.randint(100, 50_000) / 100,
            "placed": placed.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        value = chance.choice(_CORRUPTIONS)(order) if is_bad else json.dumps(order)
        bad += is_bad
        records.append((str(number + 1).encode(), value.encode()))
    return Orders(records, bad, late, too_late)


_CORRUPTIONS: tuple[Callable[[dict[str, Any]], str], ...] = (
    lambda order: json.dumps(order)[:-9],
    lambda order: "<html><body>502 Bad Gateway</body></html>",
    lambda order: json.dumps(order | {"amount": "n/a"}),
    lambda order: json.dumps(order | {"placed": "at noon"}),
    lambda order: json.dumps(order | {"country": None}),
    lambda order: json.dumps(order | {"amount": -order["amount"]}),
)


def compute_revenue(records: Iterable[tuple[bytes, bytes]]) -> dict[MinuteOfCountry, Revenue]:
    """Return the expected output of the pipeline, computed in plain Python."""
    found: dict[MinuteOfCountry, Revenue] = {}
    newest = BEGIN
    for _, value in records:
        order = parse_order(value)
        if order is None or order["placed"] < newest - WATERMARK:
            continue
        newest = max(newest, order["placed"])
        at = (order["placed"].replace(second=0, microsecond=0), order["country"])
        so_far = found.get(at, Revenue(0, Decimal(0)))
        found[at] = Revenue(so_far.orders + 1, so_far.revenue + order["amount"])
    return found


def parse_order(value: bytes) -> dict[str, Any] | None:
    """Parse the order in a record; None if it is invalid."""
    try:
        order = json.loads(value, parse_float=Decimal)
        order["placed"] = datetime.fromisoformat(order["placed"])
        order["amount"] = Decimal(order["amount"])
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return None
    return order if order["country"] is not None and order["amount"] > 0 else None
