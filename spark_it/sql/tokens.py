"""Tokenizer for Spark SQL, and properties of a statement that can be derived from its tokens.

Only the lexical rules of Spark 4 are implemented (SqlBaseLexer): nested comments, strings with backslashes, raw
strings, quoted identifiers. Derived properties are conservative; the Spark analysis on empty frames is exact.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Kind = Literal["word", "quoted", "string", "number", "symbol"]


class SqlError(ValueError):
    """A statement ends within a comment, a string or a quoted identifier; `line` counts from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def split_words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


class Token(NamedTuple):
    """A token and the line in which it starts, counted from 0. `text` of a quoted identifier is the name without
    quotes."""

    kind: Kind
    text: str
    line: int

    @property
    def word(self) -> str:
        """The keyword or function name in upper case; empty for any other token."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The identifier in lower case, as Spark compares it; empty for any other token."""
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


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a statement without whitespace and comments. Raises SqlError for an unterminated comment,
    string or identifier.
    """
    return list(_iter_tokens(sql))


def _iter_tokens(sql: str) -> Iterator[Token]:
    position, line = 0, 0
    while position < len(sql):
        if sql.startswith("/*", position):
            end = _find_end_of_comment(sql, position, line)
            line += sql.count("\n", position, end)
            position = end
            continue
        match = _PLAIN.match(sql, position)
        assert match is not None and match.lastgroup is not None  # the last symbol is any character
        text, kind = match.group(), match.lastgroup
        if kind == "symbol" and text in "'\"`":
            raise SqlError(f"unterminated {'quoted identifier' if text == '`' else 'string'}", line)
        match kind:
            case "quoted":
                yield Token("quoted", text[1:-1].replace("``", "`"), line)
            case "raw" | "string":
                yield Token("string", text, line)
            case "number" | "word" | "symbol":
                yield Token(kind, text, line)
        line += text.count("\n")
        position = match.end()


def _find_end_of_comment(sql: str, start: int, line: int) -> int:
    depth = 0
    for match in _NESTED.finditer(sql, start):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    raise SqlError("unterminated comment", line)


def normalize(sql: str) -> str:
    """Return a statement without comments and with single spaces, so that statements can be compared."""
    return " ".join(f"`{token.text}`" if token.kind == "quoted" else token.text for token in tokenize(sql))


class FunctionCall(NamedTuple):
    """A function name followed by an opening parenthesis; the name is token `at`."""

    name: str
    at: int
    line: int


def find_calls(statement_tokens: Sequence[Token]) -> Iterator[FunctionCall]:
    """Yield all function calls, and keywords before a parenthesis, such as IN and OVER."""
    for index, token in enumerate(statement_tokens[:-1]):
        if (
            token.kind in ("word", "quoted")
            and statement_tokens[index + 1].text == "("
            and statement_tokens[index + 1].kind == "symbol"
        ):
            yield FunctionCall(token.name, index, token.line)


def find_closing(statement_tokens: Sequence[Token], opening: int) -> int:
    """Return the index of the parenthesis that closes the one at `opening`; of the last token if there is none."""
    depth = 0
    for index in range(opening, len(statement_tokens)):
        if statement_tokens[index].kind == "symbol":
            depth += {"(": 1, ")": -1}.get(statement_tokens[index].text, 0)
            if depth == 0:
                return index
    return len(statement_tokens) - 1


class TableName(NamedTuple):
    """The name of a table that a statement reads, in the statement's spelling."""

    text: str
    line: int


_BEGINS_QUERY = split_words("SELECT WITH FROM VALUES TABLE MAP REDUCE")
_ENDS_FROM = split_words(
    "WHERE GROUP ORDER SORT CLUSTER DISTRIBUTE HAVING LIMIT UNION INTERSECT EXCEPT MINUS WINDOW LATERAL PIVOT"
    " UNPIVOT SELECT"
)


def find_tables(statement_tokens: Sequence[Token]) -> list[TableName]:
    """Return the tables after FROM and JOIN, without those that WITH defines in the statement itself.

    Qualified names (`find_qualified_tables`) and table functions are not included either.
    """
    defined_from = {name.casefold(): begins for name, begins in _iter_with_names(statement_tokens)}
    return [
        TableName(statement_tokens[index].text, statement_tokens[index].line)
        for index in _iter_table_positions(statement_tokens)
        if _get_next_text(statement_tokens, index) not in (".", "(")
        and index < defined_from.get(statement_tokens[index].name, len(statement_tokens))
    ]


def find_qualified_tables(statement_tokens: Sequence[Token]) -> Iterator[TableName]:
    """Yield tables with a qualified name: tables of a catalog, or files by path."""
    for index in _iter_table_positions(statement_tokens):
        end = index
        while _get_next_text(statement_tokens, end) == "." and end + 2 < len(statement_tokens):
            end += 2
        # A qualified name before a parenthesis is a function, as in system.builtin.f(...).
        if end > index and _get_next_text(statement_tokens, end) != "(":
            yield TableName(
                "".join(token.text for token in statement_tokens[index : end + 1]), statement_tokens[index].line
            )


def _get_next_text(statement_tokens: Sequence[Token], index: int) -> str:
    return statement_tokens[index + 1].text if index + 1 < len(statement_tokens) else ""


def _iter_table_positions(statement_tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the indexes of the tokens at the positions of table names."""
    # For each open parenthesis: True after a SELECT, and True if a comma separates tables (in a FROM clause).
    levels = [[False, False]]
    expects_table = False
    for index, token in enumerate(statement_tokens):
        level = levels[-1]
        if expects_table:
            is_parenthesis = (
                token.text == "("
                and index + 1 < len(statement_tokens)
                and statement_tokens[index + 1].word not in _BEGINS_QUERY
            )
            expects_table = token.word == "LATERAL" or (token.kind == "symbol" and is_parenthesis)
            if token.kind in ("word", "quoted") and not expects_table:
                yield index
                continue
        if token.kind == "symbol":
            if token.text == "(":
                levels.append([False, False])
            elif token.text == ")" and len(levels) > 1:
                levels.pop()
            elif token.text == ",":
                expects_table = level[1]
        elif token.word == "FROM" and _is_clause(statement_tokens, index, has_select=level[0]):
            level[1] = expects_table = True
        elif token.word == "JOIN":
            expects_table = True
        elif token.word in _ENDS_FROM:
            level[1] = False
            level[0] = level[0] or token.word == "SELECT"


def _is_clause(statement_tokens: Sequence[Token], index: int, *, has_select: bool) -> bool:
    """Return whether a FROM begins a clause, unlike in EXTRACT(YEAR FROM x), TRIM(x FROM y), IS DISTINCT FROM."""
    before = statement_tokens[index - 1] if index else None
    if before is None or before.text == "(":
        return True
    return has_select and before.word != "DISTINCT"


def _iter_with_names(statement_tokens: Sequence[Token]) -> Iterator[tuple[str, int]]:
    """Yield the names of common table expressions, with the token after which a name refers to the expression.

    A name is followed by `AS (` or `(columns) AS (`, and follows WITH or a comma. Within its own definition it refers
    to another table, unless the definition is recursive.
    """
    if not any(token.word == "WITH" for token in statement_tokens):
        return
    is_recursive = any(token.word == "RECURSIVE" for token in statement_tokens)
    for index, token in enumerate(statement_tokens[:-2]):
        if token.kind not in ("word", "quoted") or index == 0:
            continue
        if statement_tokens[index - 1].word not in ("WITH", "RECURSIVE") and statement_tokens[index - 1].text != ",":
            continue
        as_index = (
            find_closing(statement_tokens, index + 1) + 1 if statement_tokens[index + 1].text == "(" else index + 1
        )
        if (
            as_index + 1 < len(statement_tokens)
            and statement_tokens[as_index].word == "AS"
            and statement_tokens[as_index + 1].text == "("
        ):
            yield token.text, index if is_recursive else find_closing(statement_tokens, as_index + 1)


def find_other_statement(statement_tokens: Sequence[Token]) -> str | None:
    """Return the first keyword of a statement that is not a query; Spark would execute it immediately.

    None for a query; empty for a statement that does not begin with a word.
    """
    first = next((token for token in statement_tokens if token.text != "("), None)
    if first is None or first.word not in _BEGINS_QUERY:
        return "" if first is None else first.word
    pairs = itertools.pairwise(statement_tokens)
    is_insert = any(token.word == "INSERT" and then.word in ("INTO", "OVERWRITE") for token, then in pairs)
    return "INSERT" if is_insert else None


_KEEPS_STATE = split_words("GROUP JOIN HAVING UNION INTERSECT EXCEPT MINUS LIMIT OVER PIVOT QUALIFY")
_AGGREGATES = split_words(
    "any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or"
    " collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value"
    " grouping histogram_numeric hll_sketch_agg kurtosis last last_value listagg max max_by mean median min min_by mode"
    " percentile percentile_approx percentile_cont percentile_disc regr_slope skewness some std stddev stddev_pop"
    " stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance"
)


def find_stateful_clause(statement_tokens: Sequence[Token]) -> str | None:
    """Return the first stateful clause, such as `GROUP BY`; None if there is none.

    A statement without such a clause maps each row of one table to zero or more rows, independently of other rows.
    """
    for index, token in enumerate(statement_tokens):
        word, follows = token.word, statement_tokens[index + 1] if index + 1 < len(statement_tokens) else None
        if word == "DISTINCT" and not (follows is not None and follows.word == "FROM"):
            return "DISTINCT"
        before = statement_tokens[index - 1].text if index else ""
        # SELECT * EXCEPT (a, b) excludes columns; it is not a set operation.
        is_columns = word == "EXCEPT" and before == "*" and follows is not None and follows.text == "("
        if word in _KEEPS_STATE and before != "." and not is_columns:
            return "GROUP BY" if word == "GROUP" else word
        inner = (
            statement_tokens[index + 2].word
            if follows is not None and follows.text == "(" and index + 2 < len(statement_tokens)
            else ""
        )
        if word in ("IN", "EXISTS") and inner in ("SELECT", "FROM", "WITH"):  # EXISTS is a function on arrays too
            return f"{word} (SELECT ...)"
    for call in find_calls(statement_tokens):
        if call.name in _AGGREGATES:
            return f"{call.name}()"
    if len(find_tables(statement_tokens)) > 1:
        return "more than one table"
    return None
