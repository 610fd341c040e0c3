"""Tokens of Spark SQL, and facts about a statement that do not need Spark.

Only the lexical rules of Spark 4 are applied (its SqlBaseLexer): nested comments, strings with backslashes, raw
strings, quoted identifiers. All other facts are derived from the tokens and err on the careful side; the analysis on
empty frames is exact.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Kind = Literal["word", "quoted", "string", "number", "symbol"]


class SqlError(ValueError):
    """A statement that ends within a comment, a string or a quoted identifier; `line` counts from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


class Token(NamedTuple):
    """A token and the line it begins in, counted from 0. `text` of a quoted identifier is the name without quotes."""

    kind: Kind
    text: str
    line: int

    @property
    def word(self) -> str:
        """The keyword or function name in capitals; empty for any other token."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The identifier as Spark compares it, without regard to case; empty for any other token."""
        return self.text.casefold() if self.kind in ("word", "quoted") else ""


_PLAIN = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--(?:\\\n|[^\n])*)
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[A-Za-z]{1,2}\b)?)
      | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
      | (?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
      | (?P<quoted>`(?:``|[^`])*`)
      | (?P<word>[^\W\d]\w*)
      | (?P<symbol><=>|\|>|->|=>|::|<>|!=|<=|>=|==|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
_NESTED = re.compile(r"/\*|\*/")


def tokens(sql: str) -> list[Token]:
    """Return the tokens of a statement without spaces and comments. Raises SqlError for an unclosed comment, string or
    identifier.
    """
    return list(_tokens(sql))


def _tokens(sql: str) -> Iterator[Token]:
    position, line = 0, 0
    while position < len(sql):
        if sql.startswith("/*", position):
            end = _end_of_comment(sql, position, line)
            line += sql.count("\n", position, end)
            position = end
            continue
        match = _PLAIN.match(sql, position)
        assert match is not None and match.lastgroup is not None  # the last symbol is any character
        text, kind = match.group(), match.lastgroup
        if kind == "symbol" and text in "'\"`":
            raise SqlError(f"the {'quoted identifier' if text == '`' else 'string'} has no end", line)
        match kind:
            case "quoted":
                yield Token("quoted", text[1:-1].replace("``", "`"), line)
            case "raw" | "string":
                yield Token("string", text, line)
            case "number" | "word" | "symbol":
                yield Token(kind, text, line)
        line += text.count("\n")
        position = match.end()


def _end_of_comment(sql: str, start: int, line: int) -> int:
    depth = 0
    for match in _NESTED.finditer(sql, start):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    raise SqlError("the comment has no end", line)


def normalised(sql: str) -> str:
    """Return the statement without comments and with single spaces, equal for statements that differ in nothing
    else.
    """
    return " ".join(f"`{token.text}`" if token.kind == "quoted" else token.text for token in tokens(sql))


class Call(NamedTuple):
    """A function name followed by an opening parenthesis; the name is token `at`."""

    name: str
    at: int
    line: int


def calls(found: Sequence[Token]) -> Iterator[Call]:
    """Return all calls of functions, and also keywords before a parenthesis, such as IN and OVER."""
    for index, token in enumerate(found[:-1]):
        if token.kind in ("word", "quoted") and found[index + 1].text == "(" and found[index + 1].kind == "symbol":
            yield Call(token.name, index, token.line)


def closing(found: Sequence[Token], opening: int) -> int:
    """Return the index of the parenthesis that closes the one at `opening`, or of the last token if none does."""
    depth = 0
    for index in range(opening, len(found)):
        if found[index].kind == "symbol":
            depth += {"(": 1, ")": -1}.get(found[index].text, 0)
            if depth == 0:
                return index
    return len(found) - 1


class TableName(NamedTuple):
    """A table that a statement reads, by a name of one part, as the statement writes it."""

    text: str
    line: int


_BEGINS_QUERY = words("SELECT WITH FROM VALUES TABLE MAP REDUCE")
_ENDS_FROM = words(
    "WHERE GROUP ORDER SORT CLUSTER DISTRIBUTE HAVING LIMIT UNION INTERSECT EXCEPT MINUS WINDOW LATERAL PIVOT"
    " UNPIVOT SELECT"
)


def tables(found: Sequence[Token]) -> list[TableName]:
    """Return the tables after FROM and JOIN, except those that WITH defines in the statement itself.

    Names of several parts (`far_tables`) and functions in the place of a table are excluded too.
    """
    own = {name.casefold(): begins for name, begins in _with_names(found)}
    return [
        TableName(found[index].text, found[index].line)
        for index in _table_places(found)
        if _follows(found, index) not in (".", "(") and index < own.get(found[index].name, len(found))
    ]


def far_tables(found: Sequence[Token]) -> Iterator[TableName]:
    """Return tables with a name of several parts: of a catalog, or files by their path."""
    for index in _table_places(found):
        end = index
        while _follows(found, end) == "." and end + 2 < len(found):
            end += 2
        # system.builtin.f(...) is a function.
        if end > index and _follows(found, end) != "(":
            yield TableName("".join(token.text for token in found[index : end + 1]), found[index].line)


def _follows(found: Sequence[Token], index: int) -> str:
    return found[index + 1].text if index + 1 < len(found) else ""


def _table_places(found: Sequence[Token]) -> Iterator[int]:
    """The indexes of the names that stand where a table does."""
    # For each open parenthesis: has it had a SELECT, and are we in its FROM clause where a comma brings a table?
    levels = [[False, False]]
    wanted = False
    for index, token in enumerate(found):
        level = levels[-1]
        if wanted:
            is_around = token.text == "(" and index + 1 < len(found) and found[index + 1].word not in _BEGINS_QUERY
            wanted = token.word == "LATERAL" or (token.kind == "symbol" and is_around)
            if token.kind in ("word", "quoted") and not wanted:
                yield index
                continue
        if token.kind == "symbol":
            if token.text == "(":
                levels.append([False, False])
            elif token.text == ")" and len(levels) > 1:
                levels.pop()
            elif token.text == ",":
                wanted = level[1]
        elif token.word == "FROM" and _is_clause(found, index, has_select=level[0]):
            level[1] = wanted = True
        elif token.word == "JOIN":
            wanted = True
        elif token.word in _ENDS_FROM:
            level[1] = False
            level[0] = level[0] or token.word == "SELECT"


def _is_clause(found: Sequence[Token], index: int, *, has_select: bool) -> bool:
    """Whether a FROM begins a clause; it also stands in EXTRACT(YEAR FROM x), TRIM(x FROM y), IS DISTINCT FROM."""
    before = found[index - 1] if index else None
    if before is None or before.text == "(":
        return True
    return has_select and before.word != "DISTINCT"


def _with_names(found: Sequence[Token]) -> Iterator[tuple[str, int]]:
    """Names of common table expressions, `name AS (` and `name (columns) AS (` after WITH or a comma, and from which
    token on the name is theirs: within its own definition it is still another table's, unless it is recursive."""
    if not any(token.word == "WITH" for token in found):
        return
    is_recursive = any(token.word == "RECURSIVE" for token in found)
    for index, token in enumerate(found[:-2]):
        if token.kind not in ("word", "quoted") or index == 0:
            continue
        if found[index - 1].word not in ("WITH", "RECURSIVE") and found[index - 1].text != ",":
            continue
        at = closing(found, index + 1) + 1 if found[index + 1].text == "(" else index + 1
        if at + 1 < len(found) and found[at].word == "AS" and found[at + 1].text == "(":
            yield token.text, index if is_recursive else closing(found, at + 1)


def no_query(found: Sequence[Token]) -> str | None:
    """Return the word that makes a statement something other than a query, which Spark would execute at once.

    None for a query; empty for a statement that does not begin with a word.
    """
    first = next((token for token in found if token.text != "("), None)
    if first is None or first.word not in _BEGINS_QUERY:
        return "" if first is None else first.word
    pairs = itertools.pairwise(found)
    is_insert = any(token.word == "INSERT" and then.word in ("INTO", "OVERWRITE") for token, then in pairs)
    return "INSERT" if is_insert else None


_KEEPS_STATE = words("GROUP JOIN HAVING UNION INTERSECT EXCEPT MINUS LIMIT OVER PIVOT QUALIFY")
_AGGREGATES = words(
    "any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or"
    " collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value"
    " grouping histogram_numeric hll_sketch_agg kurtosis last last_value listagg max max_by mean median min min_by mode"
    " percentile percentile_approx percentile_cont percentile_disc regr_slope skewness some std stddev stddev_pop"
    " stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance"
)


def keeps_state(found: Sequence[Token]) -> str | None:
    """Return the clause that makes Spark bring rows together or remember them, such as `GROUP BY`; None if there is
    none.

    A statement without such a clause turns each row of one table into some rows, independently of other rows.
    """
    for index, token in enumerate(found):
        word, follows = token.word, found[index + 1] if index + 1 < len(found) else None
        if word == "DISTINCT" and not (follows is not None and follows.word == "FROM"):
            return "DISTINCT"
        before = found[index - 1].text if index else ""
        # SELECT * EXCEPT (a, b) leaves out columns.
        is_columns = word == "EXCEPT" and before == "*" and follows is not None and follows.text == "("
        if word in _KEEPS_STATE and before != "." and not is_columns:
            return "GROUP BY" if word == "GROUP" else word
        inner = found[index + 2].word if follows is not None and follows.text == "(" and index + 2 < len(found) else ""
        if word in ("IN", "EXISTS") and inner in ("SELECT", "FROM", "WITH"):  # EXISTS is a function on arrays too
            return f"{word} (SELECT ...)"
    for call in calls(found):
        if call.name in _AGGREGATES:
            return f"{call.name}()"
    if len(tables(found)) > 1:
        return "more than one table"
    return None
