"""The commands `odradek quota`."""

from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands, split_pairs
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session
from odradek.tools.cli.terminal.output import Row, Table
from odradek.tools.kafka.security.quotas import CLIENT_ID, IP, USER, Entity, alter_quotas, fetch_quotas

_KEYS: Final = ("user", "client_id", "ip", "quotas")
_PREVIEW_KEYS: Final = ("entity", "quota", "before", "after")
DEFAULT: Final = "<default>"

commands = Commands("quota", "Quotas of users, clients and addresses.")

Name = str | None
User = Annotated[Name, typer.Option("--user", metavar="NAME", help=f"User; {DEFAULT}: those without a quota.")]
ClientId = Annotated[Name, typer.Option("--client-id", metavar="ID", help=f"Client id, or {DEFAULT}.")]
Ip = Annotated[Name, typer.Option("--ip", metavar="ADDRESS", help=f"Address of clients, or {DEFAULT}.")]


@commands.command("list")
def list_quotas(
    session: Session,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    strict: Annotated[bool, typer.Option("--strict", help="Only of exactly this entity.")] = False,
) -> None:
    """List the quotas, of all entities or of those that contain the ones given."""
    found = fetch_quotas(session.cluster, _make_entity(user, client_id, ip), is_strict=strict)
    rows: list[Row] = []
    for entity, quotas in found.items():
        names = {kind: DEFAULT if name is None else name for kind, name in entity}
        values = {key: _format(value) for key, value in quotas.items()}
        rows.append((names.get(USER), names.get(CLIENT_ID), names.get(IP), values))
    session.output.show(Table(_KEYS, sorted(rows, key=lambda row: [str(value or "") for value in row[:3]])))


@commands.command("alter", is_change=True)
def alter(
    session: Session,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", "--add-config", metavar="name=number", help="Such as producer_byte_rate; repeatable."),
    ] = None,
    deleted: Annotated[
        list[str] | None, typer.Option("--delete", "--delete-config", metavar="NAME", help="Remove it; repeatable.")
    ] = None,
) -> int:
    """Set or remove quotas of an entity; --dry-run validates them and shows the values before and after."""
    if not changed and not deleted:
        raise CommandError("nothing to change: specify --set or --delete", exit_code=EXIT_USAGE)
    entity = _require_entity(user, client_id, ip)
    values = {name: _parse(name, text) for name, text in split_pairs(changed or [], "--set").items()}
    before = fetch_quotas(session.cluster, entity, is_strict=True).get(entity, {})
    alter_quotas(session.cluster, entity, values, deleted or [], is_dry_run=session.is_dry_run)
    return _report(session, entity, before, {**values, **dict.fromkeys(deleted or [])}, "altered")


@commands.command("delete", is_destructive=True)
def delete(session: Session, user: User = None, client_id: ClientId = None, ip: Ip = None) -> int:
    """Remove all quotas of an entity."""
    entity = _require_entity(user, client_id, ip)
    before = fetch_quotas(session.cluster, entity, is_strict=True).get(entity, {})
    if not before:
        raise CommandError(f"{_name(entity)} has no quotas")
    session.confirm(f"Remove the quotas of {_name(entity)} ({', '.join(before)})?")
    alter_quotas(session.cluster, entity, {}, list(before), is_dry_run=session.is_dry_run)
    return _report(session, entity, before, dict.fromkeys(before), "deleted")


def _report(
    session: Session, entity: Entity, before: dict[str, float], after: dict[str, float | None], verb: str
) -> int:
    rows = [(_name(entity), key, _format(before.get(key)), _format(value)) for key, value in after.items()]
    session.preview(Table(_PREVIEW_KEYS, rows))
    return session.finish("quota", verb, [Outcome(_name(entity))])


def _make_entity(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    given = ((USER, user), (CLIENT_ID, client_id), (IP, ip))
    return tuple((kind, None if name == DEFAULT else name) for kind, name in given if name is not None)


def _require_entity(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    entity = _make_entity(user, client_id, ip)
    if not entity or (ip is not None and len(entity) > 1):
        raise CommandError("specify --user, --client-id or both, or --ip", exit_code=EXIT_USAGE)
    return entity


def _parse(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"--set {name}={text}: the value must be a number", exit_code=EXIT_USAGE) from None


def _name(entity: Entity) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity)


def _format(value: float | None) -> int | float | None:
    return int(value) if value is not None and value.is_integer() else value
