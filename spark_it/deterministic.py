"""Whether a statement gives the same rows each time it is run over the same rows.

Where a batch is written by several transactions and repeated after a crash, a row must fall to the same unit again, so
that nothing is written by two units or by none. `current_timestamp` and its kin are safe: Spark keeps a batch's time
in the checkpoint. What a function of Python does is not seen.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odradek.spark_it.sql import Token, calls, closing, tokens, words

_RANDOM = words("rand random randn randstr uniform uuid shuffle")
_PLACE = words("monotonically_increasing_id spark_partition_id")
_FOREIGN = words("java_method reflect try_reflect")
_BY_ARRIVAL = words("first first_value last last_value any_value collect_list collect_set array_agg listagg string_agg")
_SORTS = words("sort_array array_sort")


class Finding(NamedTuple):
    """What in a statement may come out otherwise the next time, and why; `line` counts from 0."""

    what: str
    why: str
    line: int


def findings(sql: str) -> list[Finding]:
    """All that may come out otherwise, in order. Raises SqlError for a statement that has no tokens."""
    found = tokens(sql)
    return sorted([*_calls(found), *_words(found)], key=lambda one: one.line)


def _calls(found: Sequence[Token]) -> Iterator[Finding]:
    sorted_up_to = -1
    for call in calls(found):
        end = closing(found, call.at + 1)
        what = f"{call.name}()"
        if call.name in _SORTS:
            sorted_up_to = max(sorted_up_to, end)
        elif call.name in _RANDOM:
            yield Finding(what, "it is random, with a seed too: rows come in another order the next time", call.line)
        elif call.name in _PLACE:
            yield Finding(what, "it depends on where a row is computed", call.line)
        elif call.name in _FOREIGN:
            yield Finding(what, "what it calls is not known", call.line)
        elif call.name in _BY_ARRIVAL and call.at > sorted_up_to and not _is_ordered(found, end):
            yield Finding(what, "it depends on the order in which rows arrive; sort_array(...) around a list, "
                          "min, max, min_by or max_by do not", call.line)  # fmt: skip


def _is_ordered(found: Sequence[Token], end: int) -> bool:
    """Whether WITHIN GROUP (ORDER BY ...) follows."""
    return [token.word for token in found[end + 1 : end + 3]] == ["WITHIN", "GROUP"]


def _words(found: Sequence[Token]) -> Iterator[Finding]:
    for before, token in zip([None, *found], found, strict=False):
        if before is not None and before.text == ".":
            continue
        if token.word == "TABLESAMPLE":
            yield Finding("TABLESAMPLE", "it is random", token.line)
        elif token.word == "LIMIT":
            yield Finding("LIMIT", "which rows it takes depends on the order in which they arrive", token.line)
