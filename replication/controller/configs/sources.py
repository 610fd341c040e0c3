"""Sources of configuration values in DescribeConfigs (KIP-226)."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from odradek.properties import Property
from odradek.replication.metadata.broker_configs import BrokerConfigs


class ConfigSource(IntEnum):
    """Source of a value; the numbers are the protocol's."""

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
    """A configured value: the name under which it is set, the value, and its source."""

    name: str
    value: str
    source: ConfigSource


def broker_values(
    name: str, synonyms: tuple[str, ...], configs: BrokerConfigs
) -> list[SourcedValue]:
    """Return the values of a broker property and its synonyms, by precedence.

    Like Kafka's, the list begins at the first value that is set under the property's own name: the description of
    log.retention.ms lists no synonym if only log.retention.hours is set.
    """
    static = configs.static
    declared = type(static).declared()
    defaults = {}
    for synonym in synonyms:
        prop = declared.get(synonym)
        text = None if prop is None or prop.internal else prop.format(prop.default)
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
    """Return the source of the effective value of a topic property, which may be set under any synonym."""
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
