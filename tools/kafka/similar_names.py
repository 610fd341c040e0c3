"""The nearest names of a misspelt one."""

import heapq
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

MOST_SUGGESTIONS: Final = 3
MOST_COMPARED: Final = 500
"""Names that are compared letter by letter, which takes some 15 us each."""

_CUTOFF: Final = 0.6
_LEADING_ZEROS: Final = re.compile(r"(?<!\d)0+(?=\d)")


def find_similar(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that are most similar to one, nearest first; never the name itself."""
    by_lower: dict[str, str] = {}
    for each in names:
        if each != name:
            by_lower.setdefault(each.lower(), each)
    found = _rank(name.lower(), _select_candidates(name.lower(), by_lower))
    begins = sorted(each for each in by_lower if name and each.startswith(name.lower()) and each not in found)
    return [by_lower[each] for each in [*found, *begins][:MOST_SUGGESTIONS]]


def _select_candidates(name: str, names: Collection[str]) -> Collection[str]:
    """Return the names to compare: of very many those with the longest common beginning and end."""
    if len(names) <= MOST_COMPARED:
        return names
    backward = name[::-1]

    def count_common(each: str) -> int:
        if name in each or each in name:
            return min(len(name), len(each))
        return _count_common_beginning(name, each) + _count_common_beginning(backward, each[::-1])

    return heapq.nlargest(MOST_COMPARED, names, key=count_common)


def _rank(name: str, names: Iterable[str]) -> list[str]:
    """Return names by their similarity.

    Equally similar ones begin with those that differ by leading zeros only, then by the length of the common beginning.
    """
    # Imported here because only errors need it.
    import difflib

    matcher = difflib.SequenceMatcher(b=name)
    ranked = []
    for each in names:
        matcher.set_seq1(each)
        if (
            matcher.real_quick_ratio() >= _CUTOFF
            and matcher.quick_ratio() >= _CUTOFF
            and (ratio := matcher.ratio()) >= _CUTOFF
        ):
            has_other_numbers = _LEADING_ZEROS.sub("", each) != _LEADING_ZEROS.sub("", name)
            ranked.append((-ratio, has_other_numbers, -_count_common_beginning(name, each), each))
    return [each for *_, each in sorted(ranked)]


def _count_common_beginning(first: str, second: str) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def suggest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest names, or an empty text without any."""
    return format_suggestion(find_similar(name, names))


def format_suggestion(similar: Sequence[str]) -> str:
    """Return `; did you mean ...?` with names, or an empty text without any."""
    return f"; did you mean {' or '.join(similar)}?" if similar else ""
