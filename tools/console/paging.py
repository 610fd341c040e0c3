"""Search, order and pages of long tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from odradek.tools.console.settings import ROWS_PER_PAGE

_MOST_DIGITS: Final = 9

Row = TypeVar("Row")


class View(NamedTuple):
    """The part of a table that the address of a page selects.

    prefix: what the names of the table's arguments begin with, on a page that has several tables
    """

    search: str
    sort: str
    is_descending: bool
    page: int
    prefix: str = ""

    @property
    def order(self) -> str:
        """Return the order as it is in an address: `-size` is descending."""
        return f"-{self.sort}" if self.is_descending else self.sort

    def prefixed(self, **arguments: object) -> dict[str, object]:
        """Return arguments of the table by their names in an address."""
        return {f"{self.prefix}{name}": value for name, value in arguments.items()}


class Shown(NamedTuple, Generic[Row]):
    """One page of a table.

    found: number of rows that match the search
    total: number of all rows
    """

    rows: Sequence[Row]
    view: View
    found: int
    total: int

    @property
    def pages(self) -> int:
        """Return the number of pages."""
        return max(1, -(-self.found // ROWS_PER_PAGE))

    @property
    def is_long(self) -> bool:
        """Return whether the table needs a search and pages."""
        return self.pages > 1 or bool(self.view.search)

    @property
    def first(self) -> int:
        """Return the number of the first row, from 1."""
        return (self.view.page - 1) * ROWS_PER_PAGE + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """Return the number of the last row."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def read_view(arguments: Mapping[str, str], columns: Sequence[str], prefix: str = "") -> View:
    """Return the part that the arguments of an address select; the first of the columns orders without one."""
    order = arguments.get(f"{prefix}sort", "")
    sort = order.removeprefix("-")
    return View(
        arguments.get(f"{prefix}search", "").strip(),
        sort if sort in columns else columns[0],
        order.startswith("-") and sort in columns,
        _read_page(arguments.get(f"{prefix}page", "")),
        prefix,
    )


def _read_page(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else 1


def select(
    rows: Sequence[Row], view: View, keys: Mapping[str, Callable[[Row], Any]], name: Callable[[Row], str]
) -> "Shown[Row]":
    """Return the page of rows whose name contains the searched text. A key of None is ordered before all others."""
    needle = view.search.casefold()
    found = [row for row in rows if needle in name(row).casefold()] if needle else list(rows)
    key = keys[view.sort]

    def order(row: Row) -> tuple[bool, Any]:
        value = key(row)
        return value is not None, value

    found.sort(key=order, reverse=view.is_descending)
    pages = max(1, -(-len(found) // ROWS_PER_PAGE))
    page = min(view.page, pages)
    start = (page - 1) * ROWS_PER_PAGE
    return Shown(found[start : start + ROWS_PER_PAGE], view._replace(page=page), len(found), len(rows))
