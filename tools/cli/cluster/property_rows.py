"""The properties of Odradek's brokers and topics as JSON, for `odradek config properties --json`."""

from collections.abc import Mapping
from typing import Any

from odradek.log.config import CLUSTER_ONLY, LogConfig
from odradek.properties import Property, UnknownPropertyError, nearest
from odradek.server.config.broker import BrokerConfig
from odradek.tools.cli.terminal.output import JsonValue


def list_properties(name: str | None = None) -> list[JsonValue]:
    """Return all properties, or those of a name, which may be one of brokers and one of topics.

    Raises UnknownPropertyError.
    """
    declared: tuple[tuple[str, Mapping[str, Property[Any]]], ...] = (
        ("broker", BrokerConfig.declared()),
        ("topic", LogConfig.declared()),
    )
    found: list[JsonValue] = [
        _make_object(scope, properties[each])
        for scope, properties in declared
        for each in sorted(properties)
        if each == name or (name is None and not properties[each].internal)
    ]
    if not found and name is not None:
        raise UnknownPropertyError(name, nearest(name, [each for _, properties in declared for each in properties]))
    return found


def _make_object(scope: str, one: Property[Any]) -> dict[str, JsonValue]:
    is_broker = scope == "broker"
    return {
        "name": one.name,
        "scope": scope,
        "type": one.kind.name.lower(),
        "default": None if one.default is None else one.format(one.default),
        "allowed": one.allowed or None,
        "update": one.update_mode.value if is_broker else None,
        "broker_defaults": [synonym.name for synonym in one.synonyms],
        "has_effect": not one.no_effect or one.no_effect == CLUSTER_ONLY,
        "documentation": one.doc,
    }
