"""Descriptions of the declared properties, for `odradek config properties` and docs/configuration.md."""

from collections.abc import Iterable, Iterator
from typing import Any

from odradek.log.config import CLUSTER_ONLY, LogConfig
from odradek.properties import INT32_MAX, INT64_MAX, Property, UnknownPropertyError, nearest
from odradek.server.config.broker import THEMES, BrokerConfig

AnyProperty = Property[Any]
"""A property with values of any type."""


def _list_rows(properties: Iterable[AnyProperty], *, is_topic: bool) -> Iterator[tuple[str, str, str, str, str]]:
    """Return name, type, default, update mode and description of each property that is not internal, by name."""
    for prop in sorted(properties, key=lambda one: one.name):
        if not prop.internal:
            yield prop.name, _format_kind(prop), _format_default(prop), _format_update(prop, is_topic), prop.doc


def _format_kind(prop: AnyProperty) -> str:
    return prop.kind.name.lower()


def _format_default(prop: AnyProperty) -> str:
    if prop.default is None:
        return "not set"
    if prop.default in (INT32_MAX, INT64_MAX) and not isinstance(prop.default, bool):
        return "unlimited"
    return prop.format(prop.default) or "empty"


def _format_update(prop: AnyProperty, is_topic: bool) -> str:
    if prop.no_effect and prop.no_effect != CLUSTER_ONLY:
        return "no effect"
    return "topic" if is_topic else prop.update_mode.value


def format_table() -> str:
    """Return a line for each property: broker properties, then topic properties."""
    blocks = [("BROKER PROPERTIES", list(_list_rows(BrokerConfig.declared().values(), is_topic=False)))]
    blocks.append(("TOPIC PROPERTIES", list(_list_rows(LogConfig.declared().values(), is_topic=True))))
    lines: list[str] = []
    width = max(len(row[0]) for _, rows in blocks for row in rows)
    for title, rows in blocks:
        lines += ["", title] if lines else [title]
        for name, kind, default, update, doc in (("NAME", "TYPE", "DEFAULT", "UPDATE", "DESCRIPTION"), *rows):
            lines.append(f"{name:<{width}}  {kind:<8}  {default:<24}  {update:<12}  {doc}")
    return "\n".join(lines) + "\n"


def describe_property(name: str) -> str:
    """Return all details of a property, at broker and at topic level. Raises UnknownPropertyError."""
    parts = []
    broker, topic = BrokerConfig.declared().get(name), LogConfig.declared().get(name)
    if broker is not None:
        parts.append(_format_details(broker, "broker", is_topic=False))
    if topic is not None:
        parts.append(_format_details(topic, "topic", is_topic=True))
    if not parts:
        raise UnknownPropertyError(name, nearest(name, [*BrokerConfig.declared(), *LogConfig.declared()]))
    return "\n".join(parts)


def _format_details(prop: AnyProperty, scope: str, *, is_topic: bool) -> str:
    pairs = [("scope", scope), ("type", _format_kind(prop)), ("default", _format_default(prop))]
    if prop.allowed:
        pairs.append(("allowed", prop.allowed))
    if prop.synonyms:
        pairs.append(("broker default", ", then ".join(synonym.name for synonym in prop.synonyms)))
    if not is_topic:
        pairs.append(("update", prop.update_mode.value))
    if prop.no_effect == CLUSTER_ONLY:
        pairs.append(("effect", "in a cluster only"))
    elif prop.no_effect:
        pairs.append(("effect", f"none, because {prop.no_effect}"))
    return "\n".join([prop.name, f"  {prop.doc}", *(f"  {key}: {value}" for key, value in pairs)]) + "\n"


def format_markdown() -> str:
    """Return docs/configuration.md, with a table for each group of properties."""
    lines = [
        "# Configuration",
        "",
        "All properties of a broker and of a topic. A configuration file is a .properties file like Kafka's:",
        "",
        "    odradek start server.properties --override num.partitions=3",
        "    odradek config properties retention.ms       # describes a property",
        "",
        "Names, types, defaults and update modes are those of Apache Kafka 4.3; those of ZooKeeper mode are from 3.9.",
        "`read-only` properties take effect at start; `per-broker` and `cluster-wide` properties can also be changed",
        "at run time, with kafka-configs.sh. Properties marked *no effect* are accepted, so that a configuration file",
        "of Kafka can be used unchanged. Descriptions state which properties Apache Kafka does not have.",
        "",
        "`odradek config properties --markdown` generates this page from the declarations; do not edit it.",
    ]
    for theme in THEMES:
        lines += _format_section((theme.__doc__ or "").rstrip("."), theme.declared().values(), is_topic=False)
    lines += _format_section("Topics", LogConfig.declared().values(), is_topic=True)
    return "\n".join(lines) + "\n"


def _format_section(title: str, properties: Iterable[AnyProperty], *, is_topic: bool) -> list[str]:
    last = "Broker default" if is_topic else "Update"
    lines = ["", f"## {title}", "", f"| Name | Type | Default | Allowed | {last} | Description |"]
    lines.append("|---|---|---|---|---|---|")
    by_name = {prop.name: prop for prop in properties}
    for name, kind, default, update, doc in _list_rows(by_name.values(), is_topic=is_topic):
        prop = by_name[name]
        if prop.no_effect and prop.no_effect != CLUSTER_ONLY:
            update = f"no effect: {prop.no_effect}"
        elif is_topic:
            update = ", ".join(f"`{synonym.name}`" for synonym in prop.synonyms)
        cells = (f"`{name}`", kind, f"`{default}`", prop.allowed, update, doc)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("](", "]\\(") for cell in cells) + " |")
    return lines
