"""Login modules in the configuration, as Java's StreamTokenizer and Kafka's JaasConfig read them."""

import pytest

from odradek.server.security.sasl.jaas import JaasError, parse_jaas

MODULE = "org.example.Module"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ('a="b c" d=\'e "f"\'', {"a": "b c", "d": 'e "f"'}),
        ("a = b\n\tc=d", {"a": "b", "c": "d"}),
        (r'a="\"\\\'"', {"a": "\"\\'"}),
        (r'a="\t\n\a\b\f\r\v\x"', {"a": "\t\n\a\b\f\r\vx"}),
        (r'a="\101\1012\377\477\8"', {"a": "AA2\xff'78"}),
        ('a="x;y=z"', {"a": "x;y=z"}),
        ('a="//no comment"', {"a": "//no comment"}),
        ("a=b // a comment ; c=d\ne=f", {"a": "b", "e": "f"}),
        ("a=b /* a\ncomment */ e=f", {"a": "b", "e": "f"}),
        ("a=b/c\nd=e", {"a": "b", "d": "e"}),
        ("user_a.b-c_d=x", {"user_a.b-c_d": "x"}),
        ('"user_a b"=x', {"user_a b": "x"}),
        ("a=b a=c", {"a": "c"}),
        ("a=ä b=€", {"a": "ä", "b": "€"}),
        ('a=""', {"a": ""}),
        ("a=1 b=-1.5", {"a": "1", "b": "-1.5"}),
        ('a="unterminated\nb=c', {"a": "unterminated", "b": "c"}),
    ],
)
def test_options(options: str, expected: dict[str, str]) -> None:
    module = parse_jaas(f"{MODULE} required {options};")
    assert (module.class_name, module.options) == (MODULE, expected)


@pytest.mark.parametrize("flag", ["required", "REQUISITE", "Sufficient", "optional"])
def test_flags(flag: str) -> None:
    assert parse_jaas(f" {MODULE} {flag};\n").options == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Login module not specified"),
        ("  // nothing", "Login module not specified"),
        (MODULE, "control flag not specified"),
        (f"{MODULE};", "control flag is not available"),
        (f"{MODULE} user_a=secret;", "Invalid login module control flag"),
        (f"{MODULE} required", "not terminated by semi-colon"),
        (f"{MODULE} required a=secret", "not terminated by semi-colon"),
        (f"{MODULE} required a;", "Value not specified for option 1 in JAAS config"),
        (f'{MODULE} required username="a" password=my secret;', "Value not specified for option 3 in JAAS config"),
        (f"{MODULE} required a=;", "Value not specified for option 1 in JAAS config"),
        (f"{MODULE} required a secret;", "Value not specified for option 1 in JAAS config"),
        (f"{MODULE} required a=", "Value not specified for option 1 in JAAS config"),
        (f"{MODULE} required; {MODULE} required;", "contains 2 login modules, should be 1 module"),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(JaasError, match=error) as caught:
        parse_jaas(text)
    assert "secret" not in str(caught.value)


def test_no_secret_is_shown() -> None:
    assert repr(parse_jaas(f"{MODULE} required password=secret;")) == f"LoginModule({MODULE})"
