"""The login module of a `sasl.jaas.config`.

Source: Kafka's JaasConfig, `LoginModule flag option=value ... ;`, with the tokens of Java's StreamTokenizer: values are
words, or quoted with ' or " and with the escapes of C; // and / begin comments up to the end of the line.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")

_TOKEN: Final = re.compile(
    r"""
    (?P<skipped> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]*)
    | "(?P<double> (?:\\.|[^"\\\r\n])*) (?:"|\\?\Z|(?=[\r\n]))
    | '(?P<single> (?:\\.|[^'\\\r\n])*) (?:'|\\?\Z|(?=[\r\n]))
    | (?P<word> [^\x00-\x20"'/;=\x81-\x9f]+)
    | (?P<other> .)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """The text is not one login module, or not the expected one. The message contains no value of an option."""


class LoginModule(NamedTuple):
    """A login module: its Java class, and its options, some of which are secrets."""

    class_name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.class_name})"


class _Token(NamedTuple):
    """A word or a quoted string (`text`), or another character (`symbol`)."""

    text: str | None
    symbol: str


def parse_login_module(text: str, class_name: str) -> LoginModule:
    """Parse the value of a `sasl.jaas.config` whose login module must be this Java class. Raises JaasError."""
    module = parse_jaas(text)
    if module.class_name != class_name:
        raise JaasError(f"the login module must be {class_name}, not {module.class_name}")
    return module


def find_credentials(module: LoginModule) -> tuple[str, str]:
    """Return the options `username` and `password` of a login module. Raises JaasError."""
    try:
        return module.options["username"], module.options["password"]
    except KeyError as error:
        raise JaasError(f"the login module requires {error.args[0]}") from None


def parse_jaas(text: str) -> LoginModule:
    """Parse the value of a `sasl.jaas.config`. Raises JaasError."""
    tokens = _read_tokens(text)
    modules = [_parse_module(token, tokens) for token in tokens]
    if not modules:
        raise JaasError("Login module not specified in JAAS config")
    if len(modules) > 1:
        raise JaasError(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    return modules[0]


def _parse_module(name: _Token, tokens: Iterator[_Token]) -> LoginModule:
    flag = next(tokens, None)
    if flag is None:
        raise JaasError("Login module control flag not specified in JAAS config")
    if name.text is None:
        raise JaasError("Login module not specified in JAAS config")
    if flag.text is None:
        raise JaasError("Login module control flag is not available in the JAAS config")
    if flag.text.upper() not in _FLAGS:
        # Without the flag's text, which is a secret if the flag is missing before an option.
        raise JaasError(f"Invalid login module control flag in JAAS config; it is one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    for key in tokens:
        if key.symbol == ";":
            return LoginModule(name.text, options)
        equals, value = next(tokens, None), next(tokens, None)
        if equals is None or equals.symbol != "=" or value is None or value.text is None:
            # Without the key, which is a part of a secret if that has a blank and is not quoted.
            raise JaasError(f"Value not specified for option {len(options) + 1} in JAAS config")
        options[key.text or ""] = value.text
    raise JaasError("JAAS config entry not terminated by semi-colon")


def _read_tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind in ("double", "single"):
            yield _Token(_ESCAPE.sub(_unescape, match[kind]), "")
        elif kind == "word":
            yield _Token(match["word"], "")
        elif kind == "other":
            yield _Token(None, match["other"])


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _CONTROLS.get(escaped, escaped)
