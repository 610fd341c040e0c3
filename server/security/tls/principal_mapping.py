"""Principals of clients with certificates: `ssl.principal.mapping.rules` (KIP-371), as Kafka's SslPrincipalMapper.

A rule is DEFAULT, which is the distinguished name itself, or `RULE:pattern/replacement/` with an optional L or U at the
end, for lower or upper case. The first rule that matches the whole name applies.
"""

import re
from collections.abc import Callable
from typing import Final

from odradek.server.security.java_patterns import Replacement, compile_java_pattern
from odradek.server.security.principal import ANONYMOUS, USER_TYPE, Principal
from odradek.server.security.tls.distinguished_name import MalformedCertificateError, format_subject

MAX_NAME_LENGTH: Final = 4096
"""Longest distinguished name to which a RULE is applied: a regular expression may take quadratic time or more."""

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)

Rule = Callable[[str], str | None]
"""Returns the name for a distinguished name; None if the rule does not match."""


class NoPrincipalError(Exception):
    """A client's certificate results in no principal. The message has the reason."""


class PrincipalMapper:
    """The rules of one listener. Raises ValueError with the reason if `rules` is not valid."""

    def __init__(self, rules: str) -> None:
        self._text = rules
        parsed = [_parse_rule(match[1]) for match in _SPLITTER.finditer(rules.strip())]
        self._rules = [rule for rule in parsed if rule is not None]

    def find_principal(self, certificate: bytes | None) -> Principal:
        """Return the principal of a client with this certificate, in DER; ANONYMOUS without one.

        Raises NoPrincipalError.
        """
        if certificate is None:
            return ANONYMOUS
        try:
            return Principal(USER_TYPE, self.map_name(format_subject(certificate)))
        except MalformedCertificateError as error:
            raise NoPrincipalError(str(error)) from error

    def map_name(self, distinguished_name: str) -> str:
        """Return the name by the first rule that matches. Raises NoPrincipalError if none does."""
        for rule in self._rules:
            name = rule(distinguished_name)
            if name is not None:
                return name
        raise NoPrincipalError(
            f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}, rules {self._text}"
        )


def _parse_rule(text: str) -> Rule | None:
    """Return the rule; None for an empty one, which is ignored. Raises ValueError."""
    match = _PARSER.match(text)
    if match is None:
        raise ValueError(f"Invalid rule: {text}")
    if match.end() != len(text):
        raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match[1] is not None:
        return lambda distinguished_name: distinguished_name
    if match[2] is None:
        return None
    try:
        pattern = compile_java_pattern(match[2])
        return _make_rule(pattern, Replacement(match[4], pattern), match[6])
    except ValueError as error:
        raise ValueError(f"Invalid rule: `{text}`: {error}") from None


def _make_rule(pattern: re.Pattern[str], replacement: Replacement, case: str) -> Rule:
    change_case: Callable[[str], str] = {"L": str.lower, "U": str.upper}.get(case, str)

    def apply(distinguished_name: str) -> str | None:
        if len(distinguished_name) > MAX_NAME_LENGTH:
            raise NoPrincipalError(
                f"the distinguished name has {len(distinguished_name)} characters; "
                f"ssl.principal.mapping.rules supports {MAX_NAME_LENGTH}"
            )
        if pattern.fullmatch(distinguished_name) is None:
            return None
        # As in Kafka: each match in the name is replaced, so that .* matches the name and then its empty end.
        return change_case(pattern.sub(replacement.expand, distinguished_name))

    return apply
