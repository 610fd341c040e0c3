"""The commands `odradek config`."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands, split_pairs
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session
from odradek.tools.cli.terminal.completions import (
    complete_changed_configs,
    complete_config_names,
    complete_config_settings,
)
from odradek.tools.cli.terminal.output import JsonValue, Output, Row, Table
from odradek.tools.kafka.topics.configs import BROKER, BROKER_LOGGER, RESOURCE_TYPES, ConfigValue, fetch_configs

_KEYS: Final = ("name", "value", "source", "default", "changed", "read_only")
_HIDDEN: Final = "[hidden]"
ALL_BROKERS: Final = "default"

commands = Commands("config", "Configurations of topics, brokers, loggers, groups and client metrics.")


class ResourceKind(StrEnum):
    """The types of resources that have a configuration."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"
    GROUP = "group"
    CLIENT_METRICS = "client-metrics"


Kind = Annotated[
    ResourceKind,
    typer.Argument(metavar="TYPE", help="topic, broker, broker-logger, group or client-metrics."),
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME", autocompletion=complete_config_names, help=f"Names; {ALL_BROKERS}: all brokers."),
]


@commands.command("list")
def list_resources(
    session: Session,
    kind: Annotated[ResourceKind | None, typer.Argument(metavar="TYPE", help="Only resources of this type.")] = None,
) -> None:
    """List the resources that have a configuration."""
    from odradek.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
    from odradek.tools.kafka.cluster import check

    codes = [] if kind is None else [RESOURCE_TYPES[kind.value]]
    if kind is not ResourceKind.CLIENT_METRICS:
        purpose = "this list; `odradek config describe TYPE NAME` shows the configurations of one resource"
        session.cluster.any_broker().require_version(ListConfigResourcesRequest, 1, purpose)
    request = ListConfigResourcesRequest(resource_types=codes)
    response = session.cluster.ask(request, ListConfigResourcesResponse)
    check(response.error_code)
    names = {code: name for name, code in RESOURCE_TYPES.items()}
    rows = sorted((names.get(one.resource_type, "unknown"), one.resource_name) for one in response.config_resources)
    session.output.show(Table(("type", "name"), [row for row in rows if kind in (None, row[0])]))


@commands.command("describe")
def describe(
    session: Session,
    kind: Kind,
    names: Names,
    show_all: Annotated[bool, typer.Option("--all", help="Include values that were not set for the resource.")] = False,
    documentation: Annotated[bool, typer.Option("--documentation", help="Show the documentation of each.")] = False,
) -> None:
    """Show the configurations of resources, with source and default; a terminal shows changed ones in red."""
    resources = [(kind.value, _resource_name(kind, name)) for name in names]
    found = fetch_configs(session.cluster, resources, with_documentation=documentation)
    documents: list[JsonValue] = []
    parts: list[Table | Mapping[str, JsonValue]] = []
    for resource in resources:
        values = [one for one in found[resource] if show_all or one.is_changed]
        keys: tuple[str, ...] = (*_KEYS, "documentation") if documentation else _KEYS
        rows = [_make_row(one, documentation) for one in values]
        if kind is ResourceKind.BROKER_LOGGER:
            keys, rows = _join_aliases(keys, rows, [one.name for one in found[resource]])
        table = Table(keys, rows, f"{resource[0]} {resource[1] or ALL_BROKERS}", is_marked=_is_changed)
        documents.append({"type": resource[0], "name": resource[1] or ALL_BROKERS, "configs": table.as_json()})
        parts.append(table)
    session.output.show_all(documents, *parts)


@commands.command("alter", is_change=True)
def alter(
    session: Session,
    kind: Kind,
    names: Names,
    changed: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "--add-config",
            metavar="name=value",
            autocompletion=complete_config_settings,
            help="Set a value; repeatable.",
        ),
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            "--delete-config",
            metavar="NAME",
            autocompletion=complete_changed_configs,
            help="Return to the default; repeatable.",
        ),
    ] = None,
    appended: Annotated[
        list[str] | None, typer.Option("--append", metavar="name=value", help="Add an item to a list; repeatable.")
    ] = None,
    subtracted: Annotated[
        list[str] | None, typer.Option("--subtract", metavar="name=value", help="Remove it from a list; repeatable.")
    ] = None,
) -> int:
    """Change configurations of resources; --dry-run validates them and shows the values before and after."""
    from odradek.tools.cli.cluster.config_changes import alter_configs

    if not (changed or deleted or appended or subtracted):
        raise CommandError("nothing to change: specify --set, --delete, --append or --subtract", exit_code=EXIT_USAGE)
    return alter_configs(
        session,
        kind.value,
        [_resource_name(kind, name) for name in names],
        split_pairs(changed or [], "--set"),
        deleted or [],
        split_pairs(appended or [], "--append"),
        split_pairs(subtracted or [], "--subtract"),
    )


@commands.plain_command("properties")
def show_properties(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one property in full.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/configuration.md.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Show the properties of Odradek's brokers and topics, with their defaults."""
    from odradek.properties import UnknownPropertyError
    from odradek.server.config import reference

    if json and markdown:
        raise CommandError("--json excludes --markdown", exit_code=EXIT_USAGE)
    try:
        if json:
            from odradek.tools.cli.cluster.property_rows import list_properties

            Output(is_json=True).write_json(list_properties(name))
        elif name is None:
            sys.stdout.write(reference.format_markdown() if markdown else reference.format_table())
        else:
            sys.stdout.write(reference.describe_property(name))
    except UnknownPropertyError as error:
        similar = [error.nearest] if error.nearest else []
        raise CommandError(str(error), exit_code=EXIT_USAGE, similar=similar) from None


def _resource_name(kind: ResourceKind, name: str) -> str:
    """Return the name of a resource in requests. Raises CommandError if it is not one."""
    if kind is ResourceKind.BROKER and name == ALL_BROKERS:
        return ""
    if kind in (BROKER, BROKER_LOGGER) and not name.isdecimal():
        raise CommandError(f"{kind} {name}: the name must be the id of a broker", exit_code=EXIT_USAGE)
    return name


def _make_row(one: ConfigValue, with_documentation: bool) -> Row:
    value, default = (_HIDDEN, None) if one.is_sensitive else (one.value, one.default)
    row = (one.name, value, one.source, default, one.is_changed, one.is_read_only)
    return (*row, one.documentation) if with_documentation else row


def _join_aliases(
    keys: tuple[str, ...], rows: Sequence[Row], names: Sequence[str]
) -> tuple[tuple[str, ...], list[Row]]:
    """Return columns and rows of loggers with one row for those that have several names."""
    from odradek.tools.kafka.topics.broker_loggers import find_aliases

    aliases = find_aliases(names)
    if not any(aliases.values()):
        return keys, list(rows)
    return (*keys, "aliases"), [(*row, aliases[str(row[0])]) for row in rows if row[0] in aliases]


def _is_changed(row: Row) -> bool:
    return row[4] is True
