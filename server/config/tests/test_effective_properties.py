"""Every declared property is read by the broker, or declares the reason why it has no effect.

A property is read if an attribute of its name is loaded, or its name is a string, outside of the declarations and of
the checks at the start. Names with a variable prefix, as of internal topics, are composed as in the source. The
properties of TLS are attributes of `TlsSettings`, without `ssl.`.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

import odradek
from odradek.log.config import LogConfig
from odradek.properties import Property
from odradek.server.config import BrokerConfig
from odradek.server.config.loading import parse_config
from odradek.server.config.properties.security import SecurityProperties

ROOT = Path(odradek.__file__).resolve().parent.parent
PACKAGES = ("log", "replication", "coordinator", "server")
CHECKS = ("validate", "validate_change")
"""Prefixes of methods, private ones included, that check a property without using it."""

REFUSED = {
    "client.quota.callback.class",
    "principal.builder.class",
    "ssl.engine.factory.class",
    "zookeeper.ssl.crl.enable",
    "zookeeper.ssl.ocsp.enable",
}
"""Properties with which a start fails unless they have their default: see BrokerConfig.validate."""


class Reads(ast.NodeVisitor):
    """A visitor that collects loaded attributes, strings, and suffixes of f-strings that begin with a variable."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.suffixes: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not node.name.lstrip("_").startswith(CHECKS):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.names.add(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        match node.values:
            case [ast.FormattedValue(), ast.Constant(value=str(suffix))]:
                self.suffixes.add(suffix)
            case _:
                self.generic_visit(node)


def is_declaration(node: ast.stmt) -> bool:
    """Return whether a statement declares a property, which is no use of it."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)


@cache
def reads() -> Reads:
    found = Reads()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "tests" in path.relative_to(ROOT).parts:
                continue
            tree = ast.parse(path.read_text())
            if path == ROOT / "log" / "config.py" or path.parent == ROOT / "server" / "config":
                for node in tree.body:
                    if isinstance(node, ast.ClassDef):
                        methods = [part for part in node.body if not is_declaration(part)]
                        for part in methods:
                            found.visit(part)
            else:
                found.visit(tree)
    return found


TOPIC_DEFAULTS = {synonym.name for prop in LogConfig.declared().values() for synonym in prop.synonyms}


def is_read(prop: Property[object]) -> bool:
    names, suffixes = reads().names, reads().suffixes
    composed = any(prop.name.endswith(suffix) and prop.name.removesuffix(suffix) in names for suffix in suffixes)
    attribute = prop.attribute.removeprefix("ssl_") if prop.name in SecurityProperties.declared() else prop.attribute
    return attribute in names or prop.name in names or composed


def test_the_scan_finds_properties_that_are_read() -> None:
    assert {"node_id", "fetch_max_bytes", "segment_bytes"} <= reads().names
    assert not {"group_consumer_max_size", "replica_socket_receive_buffer_bytes", "queued_max_requests"} & reads().names


@pytest.mark.parametrize("declared", [BrokerConfig.declared(), LogConfig.declared()], ids=["broker", "topic"])
def test_no_property_is_both_unmarked_and_unread(declared: dict[str, Property[object]]) -> None:
    unread = {
        prop.name
        for prop in declared.values()
        if not prop.no_effect and prop.name not in TOPIC_DEFAULTS | REFUSED and not is_read(prop)
    }
    assert unread == set()


def test_a_topic_property_without_effect_has_synonyms_without_effect() -> None:
    for prop in LogConfig.declared().values():
        for synonym in prop.synonyms:
            assert bool(BrokerConfig.declared()[synonym.name].no_effect) == bool(prop.no_effect), synonym.name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_property_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        parse_config({name: "some.java.Class"})


def test_a_start_reports_properties_without_effect_with_the_reason() -> None:
    values = {"num.io.threads": "4", "queued.max.requests": "9", "process.roles": "broker", "ssl.protocol": "TLSv1.3"}
    assert parse_config(values).warnings == [
        "properties without effect, because OpenSSL provides TLS: ssl.protocol",
        "properties without effect, because one event loop does the work: num.io.threads, queued.max.requests",
        "properties without effect, because there is no KRaft quorum: process.roles",
    ]
