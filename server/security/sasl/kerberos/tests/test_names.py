"""User names of Kerberos principals, compared with what Kafka's KerberosShortNamer returns."""

import pytest

from odradek.server.security.sasl.kerberos.names import (
    KerberosName,
    KerberosNameError,
    KerberosRuleError,
    ShortNamer,
    parse_kerberos_name,
    parse_rule,
)


def shorten(rules: str, principal: str) -> str:
    return ShortNamer(map(parse_rule, rules.split(",")), "REALM.COM").shorten(principal)


def test_parses_names():
    assert parse_kerberos_name("App.service-name/example.com@REALM.COM") == KerberosName(
        "App.service-name", "example.com", "REALM.COM"
    )
    assert parse_kerberos_name("user@REALM.COM") == KerberosName("user", None, "REALM.COM")
    assert parse_kerberos_name("user/host") == KerberosName("user/host", None, None)


@pytest.mark.parametrize("name", ["a/b/c@R", "a@b@c", "a/b@c/d"])
def test_refuses_malformed_names(name):
    with pytest.raises(KerberosNameError):
        parse_kerberos_name(name)


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        # The examples of Kafka's KerberosNameTest.
        (r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g", "App.service-name@REALM.COM", "service-name"),
        (r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g", "App.service-name/example.com@REALM.COM", "service-name"),
        ("DEFAULT", "user@REALM.COM", "user"),
        ("RULE:[1:$1]/L", "User@REALM.COM", "user"),
        ("RULE:[2:$1]/L", "TestABC/host@FOO.COM", "testabc"),
        ("RULE:[1:$1](.*)s/A/b/g/U", "aAbA@REALM.COM", "ABBB"),
        ("RULE:[1:$1](.*)s/a/b/", "aaa@REALM.COM", "baa"),
        ("RULE:[1:$1](.*)s/a/b/g", "aaa@REALM.COM", "bbb"),
        ("RULE:[2:$2](.*)s/\\..*//", "kafka/host1.example.com@R", "host1"),
        # Patterns are those of Java: without other flags they ignore the case of ASCII only, not of the sign of Kelvin.
        (r"RULE:[1:$1](\p{Alpha}+)", "user@REALM.COM", "user"),
        ("RULE:[1:$1]s/(?i)^k.*/admin/", "Kafka@REALM.COM", "admin"),
        ("RULE:[1:$1]s/(?i)^k.*/admin/", "\u212aafka@REALM.COM", "\u212aafka"),
        # What matches no rule gets to the next one; the realm is $0.
        (r"RULE:[1:$1@$0](.*@OTHER\.COM)s/@.*//,DEFAULT", "user@OTHER.COM", "user"),
        (r"RULE:[1:$1@$0](.*@OTHER\.COM)s/@.*//,DEFAULT", "user@REALM.COM", "user"),
        ("DEFAULT", "kafka/host@REALM.COM", "kafka"),
        ("DEFAULT", "user", "user"),
    ],
)
def test_short_names(rules, principal, user):
    assert shorten(rules, principal) == user


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "user@OTHER.COM"),
        ("RULE:[2:$1]", "user@REALM.COM"),
        ("RULE:[1:$1@$0]", "user@REALM.COM"),
        ("RULE:[1:$2]", "user@REALM.COM"),
        ("RULE:[1:$1](other)", "user@REALM.COM"),
        ("RULE:[1:$1](.*)s/.*//", "user@REALM.COM"),
        ("DEFAULT", "@REALM.COM"),
        (r"RULE:[1:$1](\w+)", "\u00e4dmin@REALM.COM"),
    ],
)
def test_principals_without_a_user_name(rules, principal):
    with pytest.raises(KerberosNameError):
        shorten(rules, principal)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "default",
        "DEFAULT/L",
        "DEFAULT/g",
        "RULE:[1:$1]/LL",
        "RULE:[1:$1](.*)s/a/b",
        "RULE:[1:$1](*)",
        "RULE:[1:$1](.*)s/a/$x/",
        "RULE:[:$1]",
        "RULE:[1:$1",
        "rule:[1:$1]",
    ],
)
def test_refuses_malformed_rules(rule):
    with pytest.raises(KerberosRuleError):
        parse_rule(rule)
