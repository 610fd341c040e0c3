"""`ssl.principal.mapping.rules`: rules, their errors, and the syntax of Java's regular expressions."""

import pytest

from odradek.server.security.java_patterns import Replacement, compile_java_pattern
from odradek.server.security.principal import ANONYMOUS
from odradek.server.security.tls.principal_mapping import MAX_NAME_LENGTH, NoPrincipalError, PrincipalMapper

RULES = ", ".join([
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
    "DEFAULT",
])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("", ""),
    ],
)
def test_the_first_rule_that_matches_applies(name: str, expected: str) -> None:
    assert PrincipalMapper(RULES).map_name(name) == expected


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Tkac\\, Adam,OU=ITZ,DC=x", "Tkac\\, Adam"),
        ("RULE:.*/x/", "CN=a", "xx"),
        ("RULE:CN=(a|ab)/$1/", "CN=ab", "ab"),
        ("RULE:CN=(a)/$1@$4-$12/", "CN=a", "a@$4-a2"),
        ("RULE:CN=(a)(b)?/<$1$2>/", "CN=a", "<a>"),
        ("RULE:CN=(?<who>\\p{Alpha}+)/${who}\\/x/", "CN=abc", "abc/x"),
        ("RULE:(?i)cn=\\Qa.b\\E/q/", "CN=A.B", "q"),
        (",, RULE:/none/ , ,DEFAULT,", "CN=a", "CN=a"),
    ],
)
def test_details_of_java(rules: str, name: str, expected: str) -> None:
    assert PrincipalMapper(rules).map_name(name) == expected


def test_no_matching_rule() -> None:
    with pytest.raises(NoPrincipalError, match=r"no rule of ssl\.principal.mapping.rules applies to CN=b"):
        PrincipalMapper("RULE:CN=a/x/").map_name("CN=b")
    with pytest.raises(NoPrincipalError):
        PrincipalMapper("").map_name("CN=b")


def test_a_client_without_certificate_is_anonymous() -> None:
    assert PrincipalMapper("RULE:CN=a/x/").find_principal(None) == ANONYMOUS


def test_a_malformed_certificate_has_no_principal() -> None:
    for certificate in (b"", b"\x30", b"\x30\x03\x30\x01\x00", b"\x30\x84\xff\xff\xff\xff", bytes(50)):
        with pytest.raises(NoPrincipalError, match="malformed"):
            PrincipalMapper("DEFAULT").find_principal(certificate)


def test_the_length_of_names_is_limited_for_patterns() -> None:
    name = "CN=" + "a" * MAX_NAME_LENGTH
    assert PrincipalMapper("DEFAULT").map_name(name) == name
    with pytest.raises(NoPrincipalError, match="4099 characters"):
        PrincipalMapper("RULE:(.*)/$1/").map_name(name)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("default", "Invalid rule: `default`, unmatched substring: `default`"),
        ("DEFAULT/L", "Invalid rule: `DEFAULT/L`, unmatched substring: `/L`"),
        ("RULE:CN=(.*?),OU=x.*/$1", "unmatched substring"),
        ("RULE:^CN=(.*?)$/$1/L/U", "unmatched substring: `/U`"),
        ("rule:^CN=(.*?)$/$1/", "unmatched substring"),
        ("RULE:CN=(/$1/", "the regular expression is invalid"),
        ("RULE:CN=a/$1/", "there is no group \\$1"),
        ("RULE:CN=a/${x}/", "there is no group"),
        ("RULE:CN=(a)/$/", "a dollar sign in a replacement"),
        ("RULE:[a-z&&[^b]]/x/", "unions and intersections"),
        ("RULE:\\p{javaLowerCase}/x/", "is not supported"),
        ("RULE:a(?i)b/x/", "is supported only"),
    ],
)
def test_invalid_rules(rules: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PrincipalMapper(rules)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (".", "\u2028", False),
        ("(?s).", "\u2028", True),
        ("a\\z", "a", True),
        ("\\d", "\u0663", False),
        ("\\w", "\u00e9", False),
        ("[\\p{Lower}_]+", "a_b", True),
        ("\\P{Digit}", "5", False),
        ("(?<x>a)\\k<x>", "aa", True),
        ("[a~~b]", "~", True),
        ("[]a]+", "]a", True),
        ("a++b", "aab", True),
        ("\\x41\\u0042", "AB", True),
    ],
)
def test_patterns(pattern: str, text: str, matches: bool) -> None:
    assert (compile_java_pattern(pattern).fullmatch(text) is not None) == matches


def test_a_quoted_group_is_literal() -> None:
    pattern = compile_java_pattern("(a)")
    assert pattern.sub(Replacement("\\$1 \\\\ $1", pattern).expand, "a") == "$1 \\ a"
