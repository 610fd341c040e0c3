"""Determinism of statements: the same rows as input give the same rows as output.

Where several transactions write a batch that is repeated after a crash, each row must belong to the same transaction
again, so that no row is written twice or lost. `current_timestamp` and similar functions are safe where the statement
is part of the stream: Spark keeps a batch's time in the checkpoint. Python functions are not examined.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odradek.spark_it.sql.repeatable import KEYWORDS, REPEATABLE
from odradek.spark_it.sql.tokens import Call, Token, calls, closing, far_tables, tokens, words

_RANDOM = words("rand random randn randstr uniform uuid shuffle")
_PLACE = words("monotonically_increasing_id spark_partition_id")
_FOREIGN = words("java_method reflect try_reflect")
_BY_ARRIVAL = words("first first_value last last_value any_value collect_list collect_set array_agg listagg string_agg")
_SORTS = words("sort_array array_sort")
_BY_TIES = words("max_by min_by mode lag lead nth_value ntile row_number")
_SUMS = words("sum try_sum avg try_avg mean")
_MOMENTS = words(
    "corr covar_pop covar_samp kurtosis regr_avgx regr_avgy regr_intercept regr_r2 regr_slope regr_sxx regr_sxy"
    " regr_syy skewness std stddev stddev_pop stddev_samp var_pop var_samp variance"
)
_CLOCKS = words("CURRENT_TIMESTAMP CURRENT_DATE LOCALTIMESTAMP")
_CLOCK_CALLS = words("now curdate unix_timestamp")
_SESSIONS = words("CURRENT_USER SESSION_USER")
_MOMENTS_OF_TIME = words("now today tomorrow yesterday")


class Finding(NamedTuple):
    """An expression of a statement that may have another result the next time, and the reason; `line` counts from 0."""

    what: str
    why: str
    line: int


def findings(sql: str, *, has_batch_time: bool = True, has_key: bool = False) -> list[Finding]:
    """Return all expressions that may have another result, in order. Raises SqlError for a statement that has no
    tokens.

    Without `has_batch_time` the clock is read when the batch is computed. With `has_key` a result may differ in its
    last digit.
    """
    found = tokens(sql)
    clocks = [] if has_batch_time else _clocks(found)
    moments = [] if has_key else _moments(found)
    return sorted([*_calls(found), *_words(found), *_tables(found), *clocks, *moments], key=lambda one: one.line)


def clocks(sql: str) -> list[Finding]:
    """Return the expressions of a statement that read the clock. Raises SqlError."""
    return list(_clocks(tokens(sql)))


def conditions(sql: str) -> Iterator[str]:
    """Return conditions on the rows under which a statement has the same result, to the last digit."""
    names = {call.name: None for call in calls(tokens(sql))}
    ties = [f"{name}()" for name in names if name in _BY_TIES]
    if ties:
        yield f"no two rows tie in {', '.join(ties)}"
    sums = [f"{name}()" for name in names if name in _SUMS]
    if sums:
        # Their last digit depends on the order in which rows arrive.
        yield f"{', '.join(sums)} add up no FLOAT or DOUBLE"


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
        elif call.name in _BY_ARRIVAL:
            if call.at > sorted_up_to and not _is_ordered(found, end):
                yield Finding(what, "it depends on the order in which rows arrive; sort_array(...) around a list, "
                              "min and max do not, nor min_by and max_by without ties", call.line)  # fmt: skip
        elif not _is_repeatable(found, call, end):
            yield Finding(what, "nothing says that it gives the same again", call.line)


def _is_repeatable(found: Sequence[Token], call: Call, end: int) -> bool:
    """Whether a function is known to give the same again, or no function is called."""
    before = found[call.at - 1] if call.at else None
    if before is not None and before.text == ".":
        return False
    if call.name in REPEATABLE or (found[call.at].kind == "word" and call.name in KEYWORDS):
        return True
    # Names of columns follow: (SELECT ...) t(a, b), AS t(a, b), WITH t(a, b) AS (...).
    is_alias = before is not None and (before.text == ")" or before.word == "AS")
    return is_alias or [token.text.upper() for token in found[end + 1 : end + 3]] == ["AS", "("]


def _moments(found: Sequence[Token]) -> Iterator[Finding]:
    why = "it is computed in DOUBLE, and its last digit depends on the order in which rows arrive; key.fields help"
    for call in calls(found):
        if call.name in _MOMENTS:
            yield Finding(f"{call.name}()", why, call.line)


def _tables(found: Sequence[Token]) -> Iterator[Finding]:
    for table in far_tables(found):
        yield Finding(f"table {table.text}", "it may have changed when the batch is repeated", table.line)


def _is_ordered(found: Sequence[Token], end: int) -> bool:
    """Whether WITHIN GROUP (ORDER BY ...) follows."""
    return [token.word for token in found[end + 1 : end + 3]] == ["WITHIN", "GROUP"]


def _clocks(found: Sequence[Token]) -> Iterator[Finding]:
    why = (
        "it is the time at which the batch is computed; with stateful = true in its transform it is the batch's own, "
        "which is kept"
    )
    for token in _outside_names(found):
        if token.word in _CLOCKS:
            yield Finding(token.text.lower(), why, token.line)
    for call in calls(found):
        if call.name in _CLOCK_CALLS and closing(found, call.at + 1) == call.at + 2:
            yield Finding(f"{call.name}()", why, call.line)


def _outside_names(found: Sequence[Token]) -> Iterator[Token]:
    """The tokens but those after a dot, which are columns."""
    return (token for before, token in zip([None, *found], found, strict=False) if before is None or before.text != ".")


def _words(found: Sequence[Token]) -> Iterator[Finding]:
    for token in _outside_names(found):
        if token.word == "TABLESAMPLE":
            yield Finding("TABLESAMPLE", "it is random", token.line)
        elif token.word == "LIMIT":
            yield Finding("LIMIT", "which rows it takes depends on the order in which they arrive", token.line)
        elif token.word in _SESSIONS:
            yield Finding(token.text.lower(), "it depends on who runs the pipeline", token.line)
        elif token.kind == "string" and _is_moment(token):
            yield Finding(token.text, "as a date or timestamp it is when the batch is computed", token.line)


def _is_moment(token: Token) -> bool:
    """Whether Spark takes a string for a moment where it is cast, by itself too: 'today', 'now UTC'."""
    parts = token.text.strip("rR'\"").split()
    return 1 <= len(parts) <= 2 and parts[0].lower() in _MOMENTS_OF_TIME
