"""Deterministic statements: the same input rows give the same output rows.

If several transactions write a batch and the batch is repeated after a crash, each row must fall into the same
transaction again; otherwise rows are written twice or lost. `current_timestamp` and similar functions are safe in a
streaming plan, because Spark stores the batch's time in the checkpoint. Python functions are not examined.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odradek.spark_it.sql.repeatable import KEYWORDS, REPEATABLE
from odradek.spark_it.sql.tokens import (
    FunctionCall,
    Token,
    find_calls,
    find_closing,
    find_qualified_tables,
    split_words,
    tokenize,
)

_RANDOM = split_words("rand random randn randstr uniform uuid shuffle")
_PARTITION_DEPENDENT = split_words("monotonically_increasing_id spark_partition_id")
_JVM_CALLS = split_words("java_method reflect try_reflect")
_ORDER_DEPENDENT = split_words(
    "first first_value last last_value any_value collect_list collect_set array_agg listagg string_agg"
)
_SORTS = split_words("sort_array array_sort")
_TIE_DEPENDENT = split_words("max_by min_by mode lag lead nth_value ntile row_number")
_SUMS = split_words("sum try_sum avg try_avg mean")
_DOUBLE_AGGREGATES = split_words(
    "corr covar_pop covar_samp kurtosis regr_avgx regr_avgy regr_intercept regr_r2 regr_slope regr_sxx regr_sxy"
    " regr_syy skewness std stddev stddev_pop stddev_samp var_pop var_samp variance"
)
_CLOCKS = split_words("CURRENT_TIMESTAMP CURRENT_DATE LOCALTIMESTAMP")
_CLOCK_CALLS = split_words("now curdate unix_timestamp")
_SESSIONS = split_words("CURRENT_USER SESSION_USER")
_TIME_WORDS = split_words("now today tomorrow yesterday")


class Finding(NamedTuple):
    """An expression whose result may differ when a batch is repeated, and the reason; `line` counts from 0."""

    what: str
    why: str
    line: int


def find_expressions(sql: str, *, has_batch_time: bool = True, has_key: bool = False) -> list[Finding]:
    """Return the expressions whose result may differ, by line. Raises SqlError for an invalid statement.

    Without `has_batch_time` clock functions return the time at which the batch is computed. With `has_key` rows are
    assigned by key, so a difference in the last digit of other columns is harmless.
    """
    statement_tokens = tokenize(sql)
    clocks = [] if has_batch_time else _check_clocks(statement_tokens)
    double_aggregates = [] if has_key else _check_double_aggregates(statement_tokens)
    return sorted(
        [
            *_check_calls(statement_tokens),
            *_check_words(statement_tokens),
            *_check_tables(statement_tokens),
            *clocks,
            *double_aggregates,
        ],
        key=lambda finding: finding.line,
    )


def find_clocks(sql: str) -> list[Finding]:
    """Return the expressions of a statement that read the clock. Raises SqlError."""
    return list(_check_clocks(tokenize(sql)))


def list_conditions(sql: str) -> Iterator[str]:
    """Yield the conditions on the rows under which the result of a statement is always identical."""
    names = {call.name: None for call in find_calls(tokenize(sql))}
    ties = [f"{name}()" for name in names if name in _TIE_DEPENDENT]
    if ties:
        yield f"no rows tie in {', '.join(ties)}"
    sums = [f"{name}()" for name in names if name in _SUMS]
    if sums:
        # The last digit of a floating-point sum depends on the order of the rows.
        yield f"no FLOAT or DOUBLE is the argument of {', '.join(sums)}"


def _check_calls(statement_tokens: Sequence[Token]) -> Iterator[Finding]:
    sorted_up_to = -1
    for call in find_calls(statement_tokens):
        end = find_closing(statement_tokens, call.at + 1)
        what = f"{call.name}()"
        if call.name in _SORTS:
            sorted_up_to = max(sorted_up_to, end)
        elif call.name in _RANDOM:
            yield Finding(what, "it is random even with a seed, because the order of rows may differ", call.line)
        elif call.name in _PARTITION_DEPENDENT:
            yield Finding(what, "it depends on the Spark partition of a row", call.line)
        elif call.name in _JVM_CALLS:
            yield Finding(what, "it calls arbitrary Java code", call.line)
        elif call.name in _ORDER_DEPENDENT:
            if call.at > sorted_up_to and not _is_ordered(statement_tokens, end):
                yield Finding(what, "it depends on the order of the rows; use sort_array(...) around a list, min, max, "
                              "or min_by and max_by without ties", call.line)  # fmt: skip
        elif not _is_repeatable(statement_tokens, call, end):
            yield Finding(what, "it is not in the list of deterministic functions", call.line)


def _is_repeatable(statement_tokens: Sequence[Token], call: FunctionCall, end: int) -> bool:
    """Return whether a function is in the list of deterministic functions, or `call` is not a function call."""
    before = statement_tokens[call.at - 1] if call.at else None
    if before is not None and before.text == ".":
        return False
    if call.name in REPEATABLE or (statement_tokens[call.at].kind == "word" and call.name in KEYWORDS):
        return True
    # A table alias with column names: (SELECT ...) t(a, b), AS t(a, b), WITH t(a, b) AS (...).
    is_alias = before is not None and (before.text == ")" or before.word == "AS")
    return is_alias or [token.text.upper() for token in statement_tokens[end + 1 : end + 3]] == ["AS", "("]


def _check_double_aggregates(statement_tokens: Sequence[Token]) -> Iterator[Finding]:
    why = "it is computed in DOUBLE, and its last digit depends on the order of the rows; set key.fields"
    for call in find_calls(statement_tokens):
        if call.name in _DOUBLE_AGGREGATES:
            yield Finding(f"{call.name}()", why, call.line)


def _check_tables(statement_tokens: Sequence[Token]) -> Iterator[Finding]:
    for table in find_qualified_tables(statement_tokens):
        yield Finding(f"table {table.text}", "its content may have changed", table.line)


def _is_ordered(statement_tokens: Sequence[Token], end: int) -> bool:
    """Return whether WITHIN GROUP (ORDER BY ...) follows token `end`."""
    return [token.word for token in statement_tokens[end + 1 : end + 3]] == ["WITHIN", "GROUP"]


def _check_clocks(statement_tokens: Sequence[Token]) -> Iterator[Finding]:
    why = (
        "it is the time at which the batch is computed; set stateful = true in its transform to use the batch's time, "
        "which Spark stores in the checkpoint"
    )
    for token in _skip_qualified_names(statement_tokens):
        if token.word in _CLOCKS:
            yield Finding(token.text.lower(), why, token.line)
    for call in find_calls(statement_tokens):
        if call.name in _CLOCK_CALLS and find_closing(statement_tokens, call.at + 1) == call.at + 2:
            yield Finding(f"{call.name}()", why, call.line)


def _skip_qualified_names(statement_tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens without those after a dot, which are columns."""
    return (
        token
        for before, token in zip([None, *statement_tokens], statement_tokens, strict=False)
        if before is None or before.text != "."
    )


def _check_words(statement_tokens: Sequence[Token]) -> Iterator[Finding]:
    for token in _skip_qualified_names(statement_tokens):
        if token.word == "TABLESAMPLE":
            yield Finding("TABLESAMPLE", "it is random", token.line)
        elif token.word == "LIMIT":
            yield Finding("LIMIT", "which rows it returns depends on their order", token.line)
        elif token.word in _SESSIONS:
            yield Finding(token.text.lower(), "it depends on the user who runs the pipeline", token.line)
        elif token.kind == "string" and _is_time_word(token):
            yield Finding(
                token.text, "cast to a date or timestamp, it is the time at which the batch is computed", token.line
            )


def _is_time_word(token: Token) -> bool:
    """Return whether an explicit or implicit cast of a string gives the current time: 'today', 'now UTC'."""
    parts = token.text.strip("rR'\"").split()
    return 1 <= len(parts) <= 2 and parts[0].lower() in _TIME_WORDS
