"""The commands `odradek token`. The HMAC of a token is a secret: it is shown only when the token is created."""

import base64
from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.output import JsonValue, Row, Table
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session
from odradek.tools.kafka.cluster import check

_KEYS: Final = ("token_id", "owner", "requester", "renewers", "issued_ms", "expires_ms", "max_ms")
_ENDLESS: Final = -1
_SHOWN: Final = 6
"""Characters of an HMAC that output may contain."""

commands = Commands("token", "Delegation tokens.")

Hmac = Annotated[str, typer.Argument(metavar="HMAC", help="HMAC of the token, in Base64, as create has shown it.")]
Duration = Annotated[str | None, typer.Option("--period", metavar="DURATION", help="Such as 12h or 7d.")]


@commands.command("list")
def list_tokens(
    session: Session,
    owners: Annotated[
        list[str] | None, typer.Option("--owner-principal", metavar="Type:name", help="Only of this owner; repeatable.")
    ] = None,
) -> None:
    """List the tokens that this client may describe."""
    from odradek.protocol.messages import describe_delegation_token as messages

    asked = [
        messages.DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
        for kind, name in map(_split, owners or [])
    ]
    request = messages.DescribeDelegationTokenRequest(owners=asked or None)
    response = session.cluster.ask_controller(request, messages.DescribeDelegationTokenResponse)
    check(response.error_code)
    rows: list[Row] = [
        (
            one.token_id,
            f"{one.principal_type}:{one.principal_name}",
            f"{one.token_requester_principal_type}:{one.token_requester_principal_name}",
            [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in one.renewers],
            one.issue_timestamp,
            one.expiry_timestamp,
            one.max_timestamp,
        )
        for one in sorted(response.tokens, key=lambda one: one.token_id)
    ]
    session.output.show(Table(_KEYS, rows))


@commands.command("create")
def create(
    session: Session,
    renewers: Annotated[
        list[str] | None, typer.Option("--renewer-principal", metavar="Type:name", help="May renew it; repeatable.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner-principal", metavar="Type:name", help="Owner, other than this client.")
    ] = None,
    max_life: Annotated[
        str | None, typer.Option("--max-life-time", metavar="DURATION", help="Such as 7d (that of the brokers).")
    ] = None,
) -> None:
    """Create a token, and show its id and HMAC, with which a client authenticates itself by SCRAM."""
    from odradek.protocol.messages import create_delegation_token as messages

    kind, name = (None, None) if owner is None else _split(owner)
    request = messages.CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            messages.CreateDelegationTokenRequestCreatableRenewers(principal_type=each[0], principal_name=each[1])
            for each in map(_split, renewers or [])
        ],
        max_lifetime_ms=_parse_period(max_life),
    )
    response = session.cluster.ask_controller(request, messages.CreateDelegationTokenResponse)
    check(response.error_code)
    fields: dict[str, JsonValue] = {
        "token_id": response.token_id,
        "hmac": base64.b64encode(response.hmac).decode(),
        "owner": f"{response.principal_type}:{response.principal_name}",
        "issued_ms": response.issue_timestamp_ms,
        "expires_ms": response.expiry_timestamp_ms,
        "max_ms": response.max_timestamp_ms,
    }
    session.output.show_all(fields, fields)


@commands.command("renew")
def renew(session: Session, hmac: Hmac, period: Duration = None) -> None:
    """Extend the lifetime of a token."""
    from odradek.protocol.messages.renew_delegation_token import (
        RenewDelegationTokenRequest,
        RenewDelegationTokenResponse,
    )

    request = RenewDelegationTokenRequest(hmac=_decode(hmac), renew_period_ms=_parse_period(period))
    response = session.cluster.ask_controller(request, RenewDelegationTokenResponse)
    check(response.error_code)
    fields: dict[str, JsonValue] = {"expires_ms": response.expiry_timestamp_ms}
    session.output.show_all(fields, fields)


@commands.command("expire", is_destructive=True)
def expire(session: Session, hmac: Hmac, period: Duration = None) -> int:
    """End a token now, or after a period."""
    from odradek.protocol.messages import expire_delegation_token as messages

    request = messages.ExpireDelegationTokenRequest(hmac=_decode(hmac), expiry_time_period_ms=_parse_period(period))
    session.confirm("Expire the token?")
    if not session.is_dry_run:
        response = session.cluster.ask_controller(request, messages.ExpireDelegationTokenResponse)
        check(response.error_code)
    return session.finish("token", "expired", [Outcome(hmac[:_SHOWN] + "...")])


def _split(principal: str) -> tuple[str, str]:
    kind, colon, name = principal.partition(":")
    if not colon or not kind or not name:
        raise CommandError(f"{principal} is not Type:name, such as User:alice", exit_code=EXIT_USAGE)
    return kind, name


def _parse_period(text: str | None) -> int:
    from odradek.tools.kafka.times import parse_duration_ms

    if text is None:
        return _ENDLESS
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise CommandError("the HMAC is not Base64", exit_code=EXIT_USAGE) from None
