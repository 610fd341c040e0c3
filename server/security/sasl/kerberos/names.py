"""Names of Kerberos principals, and the rules that map them to names of users.

Sources: Kafka's KerberosName, KerberosShortNamer and KerberosRule, the property sasl.kerberos.principal.to.local.rules;
MIT Kerberos, auth_to_local.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from odradek.server.security.java_patterns import Replacement, compile_java_pattern

_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"DEFAULT|RULE:\[(?P<count>\d*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER: Final = re.compile(r"\$(\d*)")
_NOT_SIMPLE: Final = re.compile(r"[/@]")


class KerberosNameError(ValueError):
    """A principal that is malformed, or has no user name by the rules. The message is one line."""


class KerberosRuleError(ValueError):
    """A malformed rule. The message is one line."""


class KerberosName(NamedTuple):
    """A principal `service[/host][@realm]`."""

    service: str
    host: str | None = None
    realm: str | None = None


def parse_kerberos_name(principal: str) -> KerberosName:
    """Parse a principal. Raises KerberosNameError."""
    if "@" not in principal:
        return KerberosName(principal)
    match = _NAME.fullmatch(principal)
    if match is None:
        raise KerberosNameError(f"Malformed Kerberos name: {principal}")
    return KerberosName(match[1], match[2], match[3])


class ShortNameRule(NamedTuple):
    """One rule: by default that for principals of the default realm, whose user name is the first component.

    component_count, format: for principals of so many components, the text that is made of them; `$0` is the realm
    match: the text must match it as a whole
    old, new, is_repeated: the substitution in the text
    case: L or U if the result has only lower or upper case
    """

    component_count: int | None = None
    format: str = ""
    match: re.Pattern[str] | None = None
    old: re.Pattern[str] | None = None
    new: Replacement | None = None
    is_repeated: bool = False
    case: str = ""

    def apply(self, components: Sequence[str], default_realm: str) -> str | None:
        """Return the user name of a principal (realm, service, perhaps host); None if the rule is for others.

        Raises KerberosNameError.
        """
        if self.component_count is None:
            return components[1] if components[0] == default_realm else None
        if len(components) - 1 != self.component_count:
            return None
        text = _PARAMETER.sub(lambda match: _find_component(match, components), self.format)
        if self.match is not None and self.match.fullmatch(text) is None:
            return None
        if self.old is not None and self.new is not None:
            text = self.old.sub(self.new.expand, text, count=0 if self.is_repeated else 1)
        if _NOT_SIMPLE.search(text):
            raise KerberosNameError(f"the user name {text} contains / or @")
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


def parse_rule(text: str) -> ShortNameRule:
    """Parse `DEFAULT` or `RULE:[count:format](match)s/old/new/g/L`; all parts after `]` are optional.

    Raises KerberosRuleError.
    """
    match = _RULE.fullmatch(text)
    if match is None or match["count"] == "":
        raise KerberosRuleError(f"invalid rule {text}; it must be DEFAULT or RULE:[n:string](regexp)s/pattern/new/g/L")
    if match["format"] is None:
        return ShortNameRule()
    try:
        old = None if match["old"] is None else compile_java_pattern(match["old"])
        return ShortNameRule(
            int(match["count"]),
            match["format"],
            None if match["match"] is None else compile_java_pattern(match["match"]),
            old,
            None if old is None else Replacement(match["new"], old),
            match["all"] is not None,
            match["case"] or "",
        )
    except ValueError as error:
        raise KerberosRuleError(f"invalid rule {text}: {error}") from None


class ShortNamer:
    """Maps principals to user names by the first rule that applies."""

    def __init__(self, rules: Iterable[ShortNameRule], default_realm: str) -> None:
        self._rules = tuple(rules)
        self._default_realm = default_realm

    def shorten(self, principal: str) -> str:
        """Return the user name of a principal. Raises KerberosNameError."""
        name = parse_kerberos_name(principal)
        if name.realm is None:
            return name.service
        components = [name.realm, name.service] + ([] if name.host is None else [name.host])
        for rule in self._rules:
            if (user := rule.apply(components, self._default_realm)) is not None:
                if not user:
                    raise KerberosNameError(f"the user name of {principal} is empty")
                return user
        raise KerberosNameError(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal}")


def _find_component(match: re.Match[str], components: Sequence[str]) -> str:
    index = int(match[1]) if match[1] else -1
    if not 0 <= index < len(components):
        raise KerberosNameError(f"a rule has {match[0]}, but the principal has {len(components) - 1} components")
    return components[index]
