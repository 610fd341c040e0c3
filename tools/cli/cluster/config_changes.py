"""A change of configurations with a preview, used by `odradek config alter`, `topic alter` and others."""

from collections.abc import Mapping, Sequence
from typing import Final

from odradek.tools.cli.session import CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.output import Table
from odradek.tools.kafka.similar_names import find_similar, format_suggestion
from odradek.tools.kafka.topics.config_changes import APPEND, DELETE, SET, SUBTRACT, Operation, send_config_changes
from odradek.tools.kafka.topics.configs import (
    BROKER,
    ConfigValue,
    Resource,
    fetch_configs,
    is_for_one_broker,
    lists_all_names,
)

_PREVIEW_KEYS: Final = ("resource", "name", "before", "after")
_DEFAULT: Final = "(default)"
_HIDDEN: Final = "[hidden]"
_SECRET_ENDINGS: Final = ("password", "secret", ".key", "jaas.config")
"""Ends of the names of secrets, which a cluster marks as sensitive only if they have a value."""


def alter_configs(
    session: Session,
    kind: str,
    names: Sequence[str],
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    appended: Mapping[str, str] | None = None,
    subtracted: Mapping[str, str] | None = None,
) -> int:
    """Change configurations of resources of one kind; return the exit code. Raises RequestError, CommandError.

    With `--dry-run` the cluster only validates the change, and the values before and after it are shown.
    """
    return session.finish(kind, "altered", change_configs(session, kind, names, changed, deleted, appended, subtracted))


def change_configs(
    session: Session,
    kind: str,
    names: Sequence[str],
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    appended: Mapping[str, str] | None = None,
    subtracted: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Like `alter_configs`; return the results, which are not yet reported."""
    operations: list[Operation] = [
        *((name, SET, value) for name, value in changed.items()),
        *((name, DELETE, None) for name in deleted),
        *((name, APPEND, value) for name, value in (appended or {}).items()),
        *((name, SUBTRACT, value) for name, value in (subtracted or {}).items()),
    ]
    resources = [(kind, name) for name in names]
    before = fetch_configs(session.cluster, resources)
    if (BROKER, "") in resources:
        _warn_of_unknown(session, [*changed, *deleted, *(appended or ()), *(subtracted or ())])
    # Before the change, because a misspelt name ends the command.
    rows = [row for resource in resources for row in preview(resource, before[resource], operations)]
    outcomes = []
    for group in _group(resources):
        for name, code, message in send_config_changes(
            session.cluster, group, operations, is_dry_run=session.is_dry_run
        ):
            outcomes.append(make_outcome(name or "(all)", code, message))
    refused = {outcome.name for outcome in outcomes if outcome.error}
    accepted = [row for row in rows if row[0] not in refused]
    if accepted:
        session.preview(Table(_PREVIEW_KEYS, accepted))
    return outcomes


def _warn_of_unknown(session: Session, names: Sequence[str]) -> None:
    """Warn of configurations that no broker has: Kafka stores them for all brokers without an error."""
    broker = str(session.cluster.node_ids()[0])
    known = [one.name for one in fetch_configs(session.cluster, [(BROKER, broker)])[BROKER, broker]]
    for name in names:
        if name not in known and lists_all_names((BROKER, broker), name):
            similar = find_similar(name, known)
            session.warn(f"broker {broker} has no configuration {name}{format_suggestion(similar)}", similar)


def _group(resources: Sequence[Resource]) -> list[list[Resource]]:
    """Return the resources that one request can change."""
    if is_for_one_broker(resources[0]):
        return [[resource] for resource in resources]
    return [list(resources)]


def preview(
    resource: Resource, values: Sequence[ConfigValue], operations: Sequence[Operation]
) -> list[tuple[str, str, str | None, str | None]]:
    """Return the rows of a preview. Raises CommandError for a name that the resource has not."""
    by_name = {value.name: value for value in values}
    rows: list[tuple[str, str, str | None, str | None]] = []
    before: str | None
    after: str | None
    for name, code, operand in operations:
        value = by_name.get(name)
        if value is None:
            if lists_all_names(resource, name) and (similar := find_similar(name, by_name)):
                message = f"{resource[0]} {resource[1] or '(all)'} has no configuration {name}"
                raise CommandError(f"{message}{format_suggestion(similar)}", code="INVALID_CONFIG", similar=similar)
            before, after = None, _DEFAULT
        else:
            before, after = value.value, value.default or _DEFAULT
        if code == SET:
            after = operand
        elif code in (APPEND, SUBTRACT):
            items = [item for item in (before or "").split(",") if item]
            given = (operand or "").split(",")
            kept = [item for item in items if item not in given]
            after = ",".join(kept if code == SUBTRACT else [*items, *(one for one in given if one not in items)])
        if value is not None and value.is_sensitive:
            before, after = _HIDDEN, None if code == DELETE else _HIDDEN
        elif value is None and code != DELETE and name.endswith(_SECRET_ENDINGS):
            after = _HIDDEN
        rows.append((resource[1] or "(all)", name, before, after))
    return rows
