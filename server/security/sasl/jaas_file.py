"""Java's JAAS files, `Section { LoginModule flag option="value" ...; };`, in which Kafka has ZooKeeper's credentials.

`KAFKA_OPTS` is the environment variable of Kafka's start scripts that names the file. Source: Java's ConfigFile.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Final

from odradek.server.security.sasl.jaas import JaasError, LoginModule, parse_jaas

_SPLITTER: Final = re.compile(
    r"""
    (?P<skipped> /\*.*?(?:\*/|\Z) | //[^\r\n]*)
    | (?P<quoted> "(?:\\.|[^"\\\r\n])*" | '(?:\\.|[^'\\\r\n])*')
    | (?P<begin> \{)
    | (?P<end> \}\s*;?)
    | (?P<other> [^"'{}/]+ | .)
    """,
    re.VERBOSE | re.DOTALL,
)


def find_system_properties(kafka_opts: str) -> dict[str, str]:
    """Return the system properties, `-Dname=value`, among the options of Kafka's JVM. Raises ValueError."""
    return dict(
        word.removeprefix("-D").split("=", 1)
        for word in shlex.split(kafka_opts)
        if word.startswith("-D") and "=" in word
    )


def parse_jaas_section(text: str, name: str) -> LoginModule | None:
    """Return the login module of a section; None if there is no such section. Raises JaasError."""
    title, body, depth = "", "", 0
    for match in _SPLITTER.finditer(text):
        kind = match.lastgroup
        if kind == "begin":
            if not depth and len(title.split()) > 1:
                raise JaasError("the name of a section is one word, and comments begin with // or /*")
            depth += 1
            body = ""
        elif kind == "end":
            if depth != 1:
                raise JaasError("the braces do not match")
            if title.strip().strip("\"'") == name:
                return parse_jaas(body)
            title, depth = "", 0
        elif kind != "skipped" and depth:
            body += match[0]
        elif kind != "skipped":
            title += match[0]
    if depth:
        raise JaasError("a section has no end")
    return None


def format_jaas(class_name: str, options: Mapping[str, str]) -> str:
    """Return the value of a `sasl.jaas.config`."""
    texts = "".join(f' {key}="{_escape(value)}"' for key, value in options.items())
    return f"{class_name} required{texts};"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
