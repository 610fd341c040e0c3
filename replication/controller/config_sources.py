"""Where a configuration value comes from, as DescribeConfigs tells it (KIP-226)."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from odradek.properties import Property
from odradek.replication.metadata.broker_configs import BrokerConfigs


class ConfigSource(IntEnum):
    """The numbers are the protocol's."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class SourcedValue(NamedTuple):
    """A value that a property has somewhere: under which name, and where."""

    name: str
    value: str
    source: ConfigSource


def broker_values(
    name: str, synonyms: tuple[str, ...], configs: BrokerConfigs
) -> list[SourcedValue]:
    """All values that stand for a broker property, the one in force first.

    Kafka leaves out what precedes the first value of the property's own name, so that the description of
    log.retention.ms, when only log.retention.hours is set, names no synonym.
    """
    static = configs.static
    declared = type(static).declared()
    defaults = {}
    for synonym in synonyms:
        prop = declared.get(synonym)
        text = None if prop is None else prop.format(prop.default)
        if text is not None:
            defaults[synonym] = text
    layers: tuple[tuple[Mapping[str, str], ConfigSource], ...] = (
        (configs.dynamic_broker(), ConfigSource.DYNAMIC_BROKER),
        (configs.dynamic_default(), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (static.explicit, ConfigSource.STATIC_BROKER),
        (defaults, ConfigSource.DEFAULT),
    )
    values = [
        SourcedValue(synonym, layer[synonym], source)
        for layer, source in layers
        for synonym in synonyms
        if synonym in layer
    ]
    for index, value in enumerate(values):
        if value.name == name:
            return values[index:]
    return []


def topic_config_source(
    prop: Property[Any], explicit: Mapping[str, str], configs: BrokerConfigs
) -> ConfigSource:
    """Where the value in force of a topic property comes from, whichever synonym it has."""
    if prop.name in explicit:
        return ConfigSource.TOPIC
    for layer, source in (
        (configs.dynamic_broker(), ConfigSource.DYNAMIC_BROKER),
        (configs.dynamic_default(), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (configs.static.explicit, ConfigSource.STATIC_BROKER),
    ):
        if any(synonym.name in layer for synonym in prop.synonyms):
            return source
    return ConfigSource.DEFAULT
