"""Properties files in the syntax of Java."""

import pytest

from odradek.server.config.properties_file import read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\r\nc:3\rd 4\n e\t=\t5", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}),
        ("# comment\n ! another\n\n   \na=1 # not a comment", {"a": "1 # not a comment"}),
        ("a=one, \\\n   two, \\\n\t three\nb=2", {"a": "one, two, three", "b": "2"}),
        ("a=1\\\n# continues\nb=2", {"a": "1# continues", "b": "2"}),
        ("path=C:\\\\temp\\\\\nb=2", {"path": "C:\\temp\\", "b": "2"}),
        ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
        ('a=\\u00e9\\t\\n\\q\\"', {"a": '\u00e9\t\nq"'}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a = : b", {"a": ": b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=trailing  ", {"a": "trailing  "}),
        ("a=1\\", {"a": "1"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("", {}),
    ],
)
def test_javas_syntax(text, expected):
    assert read_properties(text.encode()) == expected


def test_encodings():
    assert read_properties("a=\u00e9".encode()) == {"a": "\u00e9"}
    assert read_properties("a=\u00e9".encode("latin-1")) == {"a": "\u00e9"}
    assert read_properties(b"\xef\xbb\xbfa=1") == {"a": "1"}


def test_a_malformed_escape_is_refused():
    with pytest.raises(ValueError, match="malformed"):
        read_properties(b"a=\\u12")


def test_the_error_of_a_malformed_escape_names_the_property_without_its_value():
    with pytest.raises(ValueError, match=r"^malformed .u escape in the value or the name of ssl\.key\.password$"):
        read_properties(b"a=1\nssl.key.password=secret\\u12\n")
