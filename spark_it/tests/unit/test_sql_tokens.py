import pytest

from odradek.spark_it.sql.tokens import (
    SqlError,
    find_calls,
    find_other_statement,
    find_stateful_clause,
    find_tables,
    normalize,
    tokenize,
)


def texts(sql):
    return [token.text for token in tokenize(sql)]


def test_comments_are_no_tokens():
    assert texts("SELECT a -- rand()\n, b /* uuid() /* nested */ */ FROM t") == ["SELECT", "a", ",", "b", "FROM", "t"]
    assert texts("SELECT /*+ BROADCAST(t) */ 1") == ["SELECT", "1"]
    assert texts("a -- goes on \\\n here\nb") == ["a", "b"]


@pytest.mark.parametrize(
    "literal", ["'it\\'s -- no'", "'/*'", '"double ` quoted"', "r'raw\\'", "'two\nlines'", "'a''b'", "''"]
)
def test_strings_contain_no_other_tokens(literal):
    found = tokenize(f"SELECT {literal} FROM t")
    assert {token.kind for token in found[1:-2]} == {"string"}
    assert "".join(token.text for token in found[1:-2]) == literal
    assert found[-1].text == "t"


def test_quoted_identifiers():
    assert [(token.kind, token.text) for token in tokenize("`a``b`.`FROM`")] == [
        ("quoted", "a`b"), ("symbol", "."), ("quoted", "FROM"),
    ]  # fmt: skip
    assert tokenize("`FROM`")[0].word == ""


def test_lines_count_from_zero():
    assert [(token.text, token.line) for token in tokenize("a\n/*\n*/ b\n'x\ny' c")] == [
        ("a", 0), ("b", 2), ("'x\ny'", 3), ("c", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "line", "what"),
    [("a\n'b", 1, "string"), ("`b", 0, "quoted identifier"), ("a\n\n/* /* */", 2, "comment"), ('"a', 0, "string")],
)
def test_unterminated_tokens(sql, line, what):
    with pytest.raises(SqlError, match=what) as raised:
        tokenize(sql)
    assert raised.value.line == line


def test_normalised():
    assert normalize("SELECT  a\nFROM t -- why") == normalize("SELECT a FROM t")
    assert normalize("SELECT 'a  b'") != normalize("SELECT 'a b'")
    assert normalize("SELECT `a`") != normalize("SELECT a")


def test_calls():
    assert [call.name for call in find_calls(tokenize("SELECT Rand(), `uuid` (), a.b, 'f(' FROM t"))] == [
        "rand",
        "uuid",
    ]


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("SELECT * FROM orders o, lines AS l WHERE a IN (1, b)", ["orders", "lines"]),
        ("SELECT a, b FROM o JOIN `order lines` USING (id, n) LEFT JOIN c ON x = y", ["o", "order lines", "c"]),
        ("SELECT EXTRACT(YEAR FROM placed), TRIM(BOTH 'x' FROM a) FROM orders", ["orders"]),
        ("SELECT * FROM orders WHERE a IS NOT DISTINCT FROM b", ["orders"]),
        ("SELECT * FROM (SELECT a FROM inner_one) x, other", ["inner_one", "other"]),
        ("WITH a AS (SELECT 1 FROM t), b (x) AS (SELECT * FROM a) SELECT * FROM b JOIN u", ["t", "u"]),
        ("WITH t AS (SELECT * FROM t WHERE a), u AS (SELECT * FROM t) SELECT * FROM u", ["t"]),
        ("WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM r JOIN t", ["t"]),
        ("SELECT * FROM (t), ((u JOIN v USING (a)))", ["t", "u", "v"]),
        ("SELECT * FROM ((SELECT a FROM t) UNION ALL SELECT a FROM u)", ["t", "u"]),
        ("SELECT * FROM range(10), catalog.db.table", []),
        ("SELECT * FROM t LATERAL VIEW explode(items) e AS a, b WHERE c", ["t"]),
        ("SELECT * FROM t, LATERAL explode(items)", ["t"]),
        ("FROM t SELECT a, b", ["t"]),
        ("FROM t |> WHERE a", ["t"]),
        ("SELECT (SELECT max(a) FROM u) FROM t ORDER BY a, b", ["u", "t"]),
        ("SELECT a FROM t UNION ALL SELECT b FROM u", ["t", "u"]),
        ("SELECT ','  AS from_, b", []),
        ("SELECT a FROM", []),
    ],
)
def test_tables(sql, read):
    assert [table.text for table in find_tables(tokenize(sql))] == read


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("SELECT insert(a, 1, 1, 'x') AS insert FROM t", None),
        ("/* c */ ((SELECT a FROM t) UNION ALL SELECT a FROM t)", None),
        ("WITH x AS (SELECT 1) SELECT * FROM x", None),
        ("FROM t |> SELECT a", None),
        ("TABLE t", None),
        ("create TABLE x AS SELECT a FROM t", "CREATE"),
        ("FROM t INSERT INTO x SELECT a", "INSERT"),
        ("WITH x AS (SELECT 1) INSERT OVERWRITE t SELECT * FROM x", "INSERT"),
        ("a.b", "A"),
        ("1 + 2", ""),
        ("", ""),
    ],
)
def test_statements_that_are_not_queries(sql, word):
    assert find_other_statement(tokenize(sql)) == word


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT * EXCEPT (a, b) FROM t", None),
        ("SELECT * FROM t EXCEPT (SELECT * FROM u)", "EXCEPT"),
        ("SELECT a, upper(b) FROM t WHERE a IN (1, 2) AND b IS DISTINCT FROM c", None),
        ("SELECT window(placed, '1 minute').start, explode(items) FROM t", None),
        ("SELECT 'GROUP BY' AS `join`, t.limit FROM t", None),
        ("SELECT offset, exists(items, x -> x > 1) FROM t", None),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u)", "EXISTS (SELECT ...)"),
        ("SELECT count(*) FROM t", "count()"),
        ("SELECT a FROM t GROUP BY a", "GROUP BY"),
        ("SELECT DISTINCT a FROM t", "DISTINCT"),
        ("SELECT a FROM t JOIN u USING (a)", "JOIN"),
        ("SELECT a FROM t, u", "more than one table"),
        ("SELECT a FROM t UNION ALL SELECT a FROM t", "UNION"),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u)", "IN (SELECT ...)"),
        ("SELECT a FROM t LIMIT 3", "LIMIT"),
    ],
)
def test_statements_that_keep_state(sql, why):
    assert find_stateful_clause(tokenize(sql)) == why
