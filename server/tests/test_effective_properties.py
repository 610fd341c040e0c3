"""Every declared property is read by the broker, or says why it has no effect.

Read means: an attribute of its name is loaded, or its name is a string, somewhere outside of the declarations and
of the checks that a start makes. Names made of a prefix, as for internal topics, are put together here as there.
"""

import ast
from pathlib import Path

import pytest

import odradek
from odradek.log.config import LogConfig
from odradek.properties import Property
from odradek.server.config import BrokerConfig
from odradek.server.config.loading import config_of

ROOT = Path(odradek.__file__).resolve().parent.parent
PACKAGES = ("log", "replication", "coordinator", "server")
CHECKS = ("validate", "validate_change")
"""Methods that look at a property without using it; private ones that begin so as well."""

REFUSED = {"authorizer.class.name"}
"""Properties with which no start succeeds unless they are as by default: see BrokerConfig.validate."""


class Reads(ast.NodeVisitor):
    """Names of attributes that are loaded, strings, and suffixes of f-strings that begin with a variable."""

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
    """A property's declaration: its name there is no use of it."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)


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


READS = reads()
TOPIC_DEFAULTS = {synonym.name for prop in LogConfig.declared().values() for synonym in prop.synonyms}


def is_read(prop: Property[object]) -> bool:
    composed = any(prop.name == before + suffix for before in READS.names for suffix in READS.suffixes)
    return prop.attribute in READS.names or prop.name in READS.names or composed


def test_the_scan_finds_what_is_read() -> None:
    assert {"node_id", "fetch_max_bytes", "segment_bytes"} <= READS.names
    assert not {"group_consumer_max_size", "replica_fetch_max_bytes", "queued_max_requests"} & READS.names


@pytest.mark.parametrize("declared", [BrokerConfig.declared(), LogConfig.declared()], ids=["broker", "topic"])
def test_no_property_is_both_unmarked_and_unread(declared: dict[str, Property[object]]) -> None:
    unread = {
        prop.name
        for prop in declared.values()
        if not prop.no_effect and prop.name not in TOPIC_DEFAULTS | REFUSED and not is_read(prop)
    }
    assert unread == set()


def test_what_a_topic_has_no_use_of_has_none_at_the_broker_either() -> None:
    for prop in LogConfig.declared().values():
        for synonym in prop.synonyms:
            assert bool(BrokerConfig.declared()[synonym.name].no_effect) == bool(prop.no_effect), synonym.name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        config_of({name: "some.java.Class"})


def test_a_start_reports_what_has_no_effect_with_the_reason() -> None:
    values = {"num.io.threads": "4", "queued.max.requests": "9", "zookeeper.connect": "z:2181", "ssl.key": "k"}
    assert config_of(values).warnings == [
        "properties without effect, because one event loop does the work: num.io.threads, queued.max.requests",
        "properties without effect, because the metadata store is embedded: zookeeper.connect",
        "properties without effect, because this broker lacks the component: ssl.key",
    ]
