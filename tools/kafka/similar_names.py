"""The nearest names of a misspelt one."""

from collections.abc import Iterable
from typing import Final

MOST_SUGGESTIONS: Final = 3


def find_similar(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that are most similar to one, nearest first."""
    # Imported here because only errors need it.
    import difflib

    by_lower: dict[str, str] = {}
    for each in names:
        by_lower.setdefault(each.lower(), each)
    found = difflib.get_close_matches(name.lower(), by_lower, MOST_SUGGESTIONS)
    begins = sorted(each for each in by_lower if name and each.startswith(name.lower()) and each not in found)
    return [by_lower[each] for each in [*found, *begins][:MOST_SUGGESTIONS]]


def suggest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest names, or an empty text without any."""
    found = find_similar(name, names)
    return f"; did you mean {' or '.join(found)}?" if found else ""
