"""A change of configurations with a preview, used by `odradek config alter`, `topic alter` and others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.tools.cli.output import Table
from odradek.tools.cli.session import CommandError, Session, make_outcome
from odradek.tools.kafka.cluster import Cluster, check
from odradek.tools.kafka.configs import RESOURCE_TYPES, ConfigValue, Resource, fetch_configs, is_for_one_broker
from odradek.tools.kafka.similar_names import suggest

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3
_PREVIEW_KEYS: Final = ("resource", "name", "before", "after")
Operation = tuple[str, int, str | None]
"""Name, code of the operation, and value."""

_DEFAULT: Final = "(default)"
_HIDDEN: Final = "[hidden]"


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
    operations: list[Operation] = [
        *((name, _SET, value) for name, value in changed.items()),
        *((name, _DELETE, None) for name in deleted),
        *((name, _APPEND, value) for name, value in (appended or {}).items()),
        *((name, _SUBTRACT, value) for name, value in (subtracted or {}).items()),
    ]
    resources = [(kind, name) for name in names]
    before = fetch_configs(session.cluster, resources)
    rows = [row for resource in resources for row in _preview(resource, before[resource], operations)]
    outcomes = []
    for group in _group(resources):
        for name, code, message in _send(session.cluster, group, operations, is_dry_run=session.is_dry_run):
            outcomes.append(make_outcome(name or "(all)", code, message))
    if not session.output.is_json and not all(outcome.error for outcome in outcomes):
        session.output.write_table(Table(_PREVIEW_KEYS, rows))
    return session.finish(kind, "altered", outcomes)


def set_configs(cluster: Cluster, kind: str, name: str, values: Mapping[str, str]) -> None:
    """Set configurations of a resource. Raises RequestError."""
    for _, code, message in _send(cluster, [(kind, name)], [(key, _SET, value) for key, value in values.items()]):
        check(code, message, f"{kind} {name}")


def _send(
    cluster: Cluster, resources: Sequence[Resource], operations: Sequence[Operation], *, is_dry_run: bool = False
) -> Iterator[tuple[str, int, str | None]]:
    """Send a change of resources; yield name, error code and message of each."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=RESOURCE_TYPES[kind],
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=code, value=value)
                    for key, code, value in operations
                ],
            )
            for kind, name in resources
        ],
        validate_only=is_dry_run,
    )
    if is_for_one_broker(resources[0]):
        response = cluster.broker(int(resources[0][1])).send(request, IncrementalAlterConfigsResponse)
    else:
        response = cluster.ask_controller(request, IncrementalAlterConfigsResponse)
    for one in response.responses:
        yield one.resource_name, one.error_code, one.error_message


def _group(resources: Sequence[Resource]) -> list[list[Resource]]:
    """Return the resources that one request can change."""
    if is_for_one_broker(resources[0]):
        return [[resource] for resource in resources]
    return [list(resources)]


def _preview(
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
            if by_name and (hint := suggest(name, by_name)):
                raise CommandError(f"{resource[0]} {resource[1] or '(all)'} has no configuration {name}{hint}")
            before, after = None, _DEFAULT
        else:
            before, after = value.value, value.default or _DEFAULT
        if code == _SET:
            after = operand
        elif code in (_APPEND, _SUBTRACT):
            items = [item for item in (before or "").split(",") if item]
            given = (operand or "").split(",")
            kept = [item for item in items if item not in given]
            after = ",".join(kept if code == _SUBTRACT else [*items, *(one for one in given if one not in items)])
        if value is not None and value.is_sensitive:
            before, after = _HIDDEN, None if code == _DELETE else _HIDDEN
        rows.append((resource[1] or "(all)", name, before, after))
    return rows
