import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.spark_it.definition.toml_lines import scan_lines

EVERY_FORM = """\
# a comment with [brackets] and "quotes
name = "orders"   # = not a key
"quoted key" = 'a # b'
'literal \\key' = 1979-05-27T07:32:00Z
"esc\\u0041\\"ped\\t" = 1
1234 = -1.5e3
dotted . "key.with.dots" . 'x' = true
dotted.y=[1,2]

[source.orders]
value.format = "json"
value.schema = '''
[not.a.header]
key = 'not a key'
a''b'''
text = \"\"\"
also = "no"
\\\"\"\" still
quotes at the end\"\"\"\"\"
[ source . "other" ] # comment
inline = { a = 1, b.c = [ { d = 2 }, { d = "}" } ], 'e' = {} }
many = [
  # comment ]
  "one,", 'two]',
  [ 3, 4 ], { k = 5 },
]
[[transform]]
name = "first"
[[transform]]
name = "second"
  [transform.options]
  deep = 1
  [[transform.rows]]
  x = 1
  [[transform.rows]]
  x = 2
[a.b.c]
[a]
z = 0
last = inf"""


def all_paths(value, path=()):
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from all_paths(below, (*path, key))


@pytest.mark.parametrize("text", [EVERY_FORM, EVERY_FORM.replace("\n", "\r\n"), "", "a=1", "\n\n[x]", "#"])
def test_every_path_has_a_line(text):
    assert set(scan_lines(text).keys) == set(all_paths(tomllib.loads(text)))


def test_the_line_is_the_one_with_the_key():
    lines = scan_lines(EVERY_FORM).keys
    rows = EVERY_FORM.split("\n")
    for path, line in lines.items():
        key = path[-1]
        if isinstance(key, str) and "\t" not in key:
            assert key in rows[line - 1], path


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (('escA"ped\t',), 5),
        (("dotted", "y"), 8),
        (("source", "orders", "value", "schema"), 12),
        (("source", "orders", "text"), 16),
        (("source", "other", "inline", "b", "c", 1, "d"), 21),
        (("source", "other", "many", 0), 24),
        (("source", "other", "many", 2, 1), 25),
        (("source", "other", "many", 3, "k"), 25),
        (("transform", 0, "name"), 28),
        (("transform", 1), 29),
        (("transform", 1, "options", "deep"), 32),
        (("transform", 1, "rows", 1, "x"), 36),
        (("a", "b", "c"), 37),
        (("a", "z"), 39),
    ],
)
def test_lines(path, line):
    assert scan_lines(EVERY_FORM).keys[path] == line


def test_a_missing_key_has_the_line_of_its_table():
    lines = scan_lines(EVERY_FORM)
    assert lines.find_line(("source", "orders", "topics")) == 10
    assert lines.find_line(("sink",)) == 1


def test_lines_within_a_string():
    lines = scan_lines(EVERY_FORM)
    assert lines.find_line_within(("source", "orders", "value", "schema"), 1) == 14
    assert lines.find_line_within(("source", "orders", "text"), 2) == 19


keys = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True),
    st.text(st.characters(exclude_characters='"\\', min_codepoint=32, max_codepoint=126), max_size=5).map(
        lambda text: f'"{text}"'
    ),
    st.text(st.characters(exclude_characters="'", min_codepoint=32, max_codepoint=126), max_size=5).map(
        lambda text: f"'{text}'"
    ),
)
scalars = st.sampled_from(
    ["1", "true", "1979-05-27 07:32:00", '"a # ] } ,"', "'''\n[x]\ny = 1'''", '"""\\"""\n]"""', "'\"'", '""', "''''''"]
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda some: "[\n# c ]\n" + " ,\n".join(some) + "\n]"),
        st.lists(st.tuples(keys, inner), max_size=3).map(
            lambda some: "{ " + ", ".join(f"{key} = {value}" for key, value in some) + " }"
        ),
    ),
    max_leaves=6,
)
dotted = st.lists(keys, min_size=1, max_size=3).map(" . ".join)
statements = st.one_of(
    st.tuples(dotted, values).map(" = ".join),
    dotted.map(lambda key: f"[{key}]"),
    dotted.map(lambda key: f"[[ {key} ]]"),
    st.just("# = [x]"),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(statements, max_size=6).map("\n".join))
def test_any_document(text):
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(scan_lines(text).keys) == set(all_paths(read))
