"""Principals of clients with certificates, beside Java's names and Apache Kafka's mapping rules."""

import base64
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from compat_tests.apache_kafka import jars
from odradek.server.security.tls.distinguished_name import format_subject
from odradek.server.security.tls.principal_mapping import NoPrincipalError, PrincipalMapper

pytestmark = pytest.mark.usefixtures("kafka_jars")

SOURCE = Path(jars.__file__).with_name("Principals.java")

UTF8, NUMERIC, PRINTABLE, TELETEX, IA5, GENERAL, UNIVERSAL, BMP = 12, 18, 19, 20, 22, 27, 28, 30
KNOWN = ["2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11"]
KNOWN += ["0.9.2342.19200300.100.1.25", "0.9.2342.19200300.100.1.1"]
OTHERS = ["1.2.840.113549.1.9.1", "2.5.4.5", "2.5.4.4", "2.5.4.42", "2.5.4.46", "2.5.4.12", "2.999.7", "1.3.6.1.4.1.1"]
ALPHABET = ["a", "B", "9", " ", " ", ",", "=", "+", "<", ">", "#", ";", '"', "\\", "\0", "\r", "\n", "\u00fc", "\u20ac"]
ALPHABET += ["\U0001f600", "*", "@", "/", "'", "\x7f", "\u0130"]


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(digits)]) + digits + content


def identifier(text: str) -> bytes:
    numbers = list(map(int, text.split(".")))
    content = bytearray()
    for number in (numbers[0] * 40 + numbers[1], *numbers[2:]):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        content += bytes(reversed(groups))
    return der(6, bytes(content))


def subject(*names: list[tuple[str, int, bytes]]) -> bytes:
    """Return a distinguished name in DER: relative names of attributes, each with identifier, type and value."""
    return der(0x30, b"".join(
        der(0x31, b"".join(der(0x30, identifier(kind) + der(tag, value)) for kind, tag, value in name))
        for name in names
    ))  # fmt: skip


def certificate(name: bytes, *, has_version: bool = True) -> bytes:
    """Return a certificate with a subject; its other fields are empty."""
    fields = der(0xA0, der(2, b"\2")) if has_version else b""
    fields += der(2, b"\1") + der(0x30, b"") * 3 + name
    return der(0x30, der(0x30, fields) + der(0x30, b"") + der(3, b"\0"))


def ask_java(lines: Iterable[list[str | bytes]]) -> list[str | None]:
    """Return the answers of Java; None for an error."""
    encoded = [" ".join(["map" if len(line) == 2 else "name", *(_encode(field) for field in line)]) for line in lines]
    command = [jars.java(), "-Xshare:auto", "-cp", jars.kafka_classpath(), str(SOURCE)]
    result = subprocess.run(
        command, input="\n".join(encoded) + "\n", capture_output=True, text=True, check=True, timeout=120
    )
    answers = result.stdout.split("\n")[:-1]
    assert len(answers) == len(encoded)
    return [None if one == "error" else base64.b64decode(one[3:]).decode() for one in answers]


def _encode(field: str | bytes) -> str:
    return base64.b64encode(field.encode() if isinstance(field, str) else field).decode()


def random_value(source: random.Random) -> tuple[int, bytes]:
    text = "".join(source.choices(ALPHABET, k=source.choice([0, 1, 1, 2, 5, 200])))
    tag = source.choice([UTF8, UTF8, UTF8, PRINTABLE, IA5, TELETEX, GENERAL, NUMERIC, UNIVERSAL, BMP])
    if tag == BMP:
        return tag, text.encode("utf-16-be")
    if tag == UNIVERSAL:
        return tag, text.encode("utf-32-be")
    if tag == TELETEX:
        return tag, text.encode("latin-1", "replace")
    return tag, text.encode()


def test_names_are_those_of_java() -> None:
    source = random.Random(371)
    names = [subject()]
    for kind in (*KNOWN, *OTHERS):
        names += [subject([(kind, tag, b" x,y ")]) for tag in (UTF8, NUMERIC, PRINTABLE, TELETEX, IA5, GENERAL, BMP)]
    for _ in range(3000):
        names.append(subject(*(
            [(source.choice(KNOWN * 2 + OTHERS), *random_value(source)) for _ in range(source.choice([1, 1, 1, 2, 3]))]
            for _ in range(source.randrange(4))
        )))  # fmt: skip
    expected = ask_java([name] for name in names)
    assert sum(one is not None for one in expected) > 2500
    for number, (name, java_name) in enumerate(zip(names, expected, strict=True)):
        if java_name is not None:
            assert format_subject(certificate(name, has_version=bool(number % 2))) == java_name, name.hex()


RULES = [
    "", "DEFAULT", "default", "DEFAULT/L", " DEFAULT , ", ",,RULE://,,,DEFAULT,,", "RULE:.*/x/", "RULE:/.*/",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT", "RULE:^CN=(.*?),OU=(.*?)$/$1@$2/U", "RULE:CN=(a|ab).*/$1/",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "RULE:(.*)/$1@$4/",
    "RULE:(.*)/$12-$0/", "RULE:(CN)(=)(x)?(.*)/$3$4/", "RULE:(?i)cn=(.*)/\\/\\$$1/", "RULE:CN=(.*)/$1/L/U",
    "RULE:CN=(?<who>[^,]*).*/${who}/", "RULE:\\QCN=\\E(.)+/$1/", "RULE:CN=\\p{Lower}++/lower/,RULE:.*/other/",
    "RULE:CN=(\\w+)[ \\t]*/$1/,DEFAULT", "RULE:.+/dot/,DEFAULT", "RULE:(?s).+/dot/,DEFAULT", "RULE:CN=a$/end/,DEFAULT",
    "RULE:[^=]+=([]a-z]+)/$1/", "RULE:CN=(.*?)(?=,|$).*/$1/", "RULE:[A-Z]+=.*?/$0/", "rule:a/b/", "RULE:a/b",
    "RULE:,RULE:,/,RULE:,\\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT",
]  # fmt: skip
NAMES = [
    "", "CN=a", "CN=ab", "CN=Duke,OU=ServiceUsers,O=Org,C=US", "cN=Duke,OU=Java", "CN=Tkac\\, Adam,OU=ITZ,DC=x",
    "CN=a\nb", "CN=a\u2028b", "CN=a\r", "CN=\u00dc\u0130\u03a3", "CN=a]b", "OU=x,CN=y", "CN=x1", "DEFAULT", "CN=a\n",
]  # fmt: skip


def test_mapped_names_are_those_of_apache_kafka() -> None:
    cases = [(rules, name) for rules in RULES for name in NAMES]
    for (rules, name), expected in zip(cases, ask_java([*case] for case in cases), strict=True):
        try:
            found: str | None = PrincipalMapper(rules).map_name(name)
        except (ValueError, NoPrincipalError):
            found = None
        assert found == expected, (rules, name)
