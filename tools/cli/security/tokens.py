"""The commands `odradek token`. The HMAC of a token is a secret: it is shown only when the token is created."""

import base64
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session
from odradek.tools.cli.terminal.output import JsonValue, Row, Table
from odradek.tools.kafka.cluster import RequestError, check

if TYPE_CHECKING:
    from odradek.protocol.messages.describe_delegation_token import (
        DescribeDelegationTokenResponseDescribedDelegationToken as DescribedToken,
    )

_KEYS: Final = ("token_id", "owner", "requester", "renewers", "issued_ms", "expires_ms", "max_ms")
_CREATION_KEYS: Final = ("owner", "renewers", "max_life_ms")
_CHANGE_KEYS: Final = ("token_id", "owner", "expires_ms", "new_expires_ms")
_NEW: Final = "(new)"
_RENEWAL_TIME: Final = "delegation.token.expiry.time.ms"
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
    rows: list[Row] = [
        (
            one.token_id,
            _name_owner(one),
            f"{one.token_requester_principal_type}:{one.token_requester_principal_name}",
            [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in one.renewers],
            one.issue_timestamp,
            one.expiry_timestamp,
            one.max_timestamp,
        )
        for one in sorted(_fetch(session, owners or None), key=lambda one: one.token_id)
    ]
    session.output.show(Table(_KEYS, rows))


@commands.command("create", is_change=True)
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
) -> int:
    """Create a token, and show its id and HMAC, with which a client authenticates itself by SCRAM."""
    from odradek.protocol.messages import create_delegation_token as messages

    kind, name = (None, None) if owner is None else _split(owner)
    max_life_ms = _parse_period(max_life)
    request = messages.CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            messages.CreateDelegationTokenRequestCreatableRenewers(principal_type=each[0], principal_name=each[1])
            for each in map(_split, renewers or [])
        ],
        max_lifetime_ms=max_life_ms,
    )
    if session.is_dry_run:
        # No token is selected: brokers without tokens, and clients that must not use them, get an error.
        _fetch(session, [])
        row = (owner, renewers or [], None if max_life is None else max_life_ms)
        session.preview(Table(_CREATION_KEYS, [row]))
        return session.finish("token", "created", [Outcome(_NEW)])
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
    return 0


@commands.command("renew", is_change=True)
def renew(session: Session, hmac: Hmac, period: Duration = None) -> int:
    """Extend the lifetime of a token."""
    from odradek.protocol.messages.renew_delegation_token import (
        RenewDelegationTokenRequest,
        RenewDelegationTokenResponse,
    )

    request = RenewDelegationTokenRequest(hmac=_decode(hmac), renew_period_ms=_parse_period(period))
    if session.is_dry_run:
        return _preview_renewal(session, hmac, _parse_period(period))
    response = session.cluster.ask_controller(request, RenewDelegationTokenResponse)
    check(response.error_code)
    fields: dict[str, JsonValue] = {"expires_ms": response.expiry_timestamp_ms}
    session.output.show_all(fields, fields)
    return 0


@commands.command("expire", is_destructive=True)
def expire(session: Session, hmac: Hmac, period: Duration = None) -> int:
    """End a token now, or after a period."""
    from odradek.protocol.messages import expire_delegation_token as messages

    request = messages.ExpireDelegationTokenRequest(hmac=_decode(hmac), expiry_time_period_ms=_parse_period(period))
    if session.is_dry_run:
        token = _find(session, hmac)
        after_ms = min(_now_ms() + max(_parse_period(period), 0), token.max_timestamp)
        return _preview(session, token, hmac, after_ms, "expired")
    session.confirm("Expire the token?")
    response = session.cluster.ask_controller(request, messages.ExpireDelegationTokenResponse)
    check(response.error_code)
    return session.finish("token", "expired", [_make_outcome(hmac)])


def _preview_renewal(session: Session, hmac: str, period_ms: int) -> int:
    token = _find(session, hmac)
    longest_ms = _find_longest_renewal(session)
    after_ms = None
    if longest_ms is not None:
        added_ms = min(period_ms, longest_ms) if period_ms > 0 else longest_ms
        after_ms = min(_now_ms() + added_ms, token.max_timestamp)
    return _preview(session, token, hmac, after_ms, "renewed")


def _find_longest_renewal(session: Session) -> int | None:
    """Return the period of a renewal without one, which is also the longest; None if this client must not read it."""
    from odradek.tools.kafka.topics.configs import BROKER, fetch_configs

    resource = (BROKER, str(session.cluster.node_ids()[0]))
    try:
        configs = fetch_configs(session.cluster, [resource])[resource]
    except RequestError as error:
        if error.code != "CLUSTER_AUTHORIZATION_FAILED":
            raise
        return None
    return next((int(one.value) for one in configs if one.name == _RENEWAL_TIME and one.value), None)


def _find(session: Session, hmac: str) -> "DescribedToken":
    """Return the token that an HMAC authenticates. Raises RequestError."""
    wanted = _decode(hmac)
    for token in _fetch(session, None):
        if bytes(token.hmac) == wanted:
            return token
    raise RequestError("DELEGATION_TOKEN_NOT_FOUND", "DELEGATION_TOKEN_NOT_FOUND")


def _preview(session: Session, token: "DescribedToken", hmac: str, after_ms: int | None, verb: str) -> int:
    """Show when a token expires before and after a change."""
    row = (token.token_id, _name_owner(token), token.expiry_timestamp, after_ms)
    session.preview(Table(_CHANGE_KEYS, [row]))
    return session.finish("token", verb, [_make_outcome(hmac)])


def _fetch(session: Session, owners: Sequence[str] | None) -> "Sequence[DescribedToken]":
    """Return the tokens of owners that this client may describe, of all owners with None. Raises RequestError."""
    from odradek.protocol.messages import describe_delegation_token as messages

    asked = [
        messages.DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
        for kind, name in map(_split, owners or [])
    ]
    request = messages.DescribeDelegationTokenRequest(owners=None if owners is None else asked)
    response = session.cluster.ask_controller(request, messages.DescribeDelegationTokenResponse)
    check(response.error_code)
    return response.tokens


def _name_owner(token: "DescribedToken") -> str:
    return f"{token.principal_type}:{token.principal_name}"


def _make_outcome(hmac: str) -> Outcome:
    return Outcome(hmac[:_SHOWN] + "...")


def _now_ms() -> int:
    return int(time.time() * 1000)


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
