"""The commands `odradek cluster features`."""

from typing import Annotated, Final, Literal

import typer

from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.tools.cli.groups import Commands, split_pairs
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.output import Row, Table
from odradek.tools.kafka.cluster import check
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_CLIENT: Final = ("odradek", "1")

feature_commands = Commands("features", "Features of the cluster and their levels.")

Levels = Annotated[
    list[str], typer.Option("--feature", metavar="name=level", help="Feature with its new level; repeatable.")
]


@feature_commands.command("describe")
def describe(session: Session) -> None:
    """Show the features: the levels that the brokers support, and the finalized level."""
    session.output.show(Table(("feature", "lowest", "highest", "finalized"), _fetch_rows(session)))


@feature_commands.command("upgrade", is_change=True)
def upgrade(session: Session, features: Levels) -> int:
    """Raise the levels of features."""
    return _update(session, features, _UPGRADE, "upgraded")


@feature_commands.command("downgrade", is_destructive=True)
def downgrade(
    session: Session,
    features: Levels,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Permit the loss of metadata.")] = False,
) -> int:
    """Lower the levels of features."""
    session.confirm(f"Downgrade {', '.join(features)}?")
    return _update(session, features, _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE, "downgraded")


def _update(session: Session, features: list[str], kind: int, verb: Literal["upgraded", "downgraded"]) -> int:
    from odradek.protocol.messages import update_features as messages

    levels = split_pairs(features, "--feature")
    known = [str(row[0]) for row in _fetch_rows(session)]
    updates = []
    for name, level in levels.items():
        if not level.isdecimal():
            raise CommandError(f"--feature {name}={level}: the level must be a number", exit_code=EXIT_USAGE)
        if name not in known and (similar := find_similar(name, known)):
            raise CommandError(f"there is no feature {name}{format_suggestion(similar)}", similar=similar)
        updates.append(
            messages.UpdateFeaturesRequestFeatureUpdateKey(
                feature=name, max_version_level=int(level), allow_downgrade=kind != _UPGRADE, upgrade_type=kind
            )
        )
    if session.is_dry_run:
        # The controller may be another broker, which serves the same versions except during an upgrade.
        for broker in session.cluster.node_ids():
            session.cluster.broker(broker).require_version(messages.UpdateFeaturesRequest, 1, "--dry-run")
    request = messages.UpdateFeaturesRequest(feature_updates=updates, validate_only=session.is_dry_run)
    response = session.cluster.ask_controller(request, messages.UpdateFeaturesResponse)
    check(response.error_code, response.error_message)
    outcomes = [make_outcome(one.feature, one.error_code, one.error_message) for one in response.results]
    # Since version 2 the response has no results if all updates succeed.
    return session.finish("feature", verb, outcomes or [Outcome(name) for name in levels])


def _fetch_rows(session: Session) -> list[Row]:
    name, version = _CLIENT
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    response = session.cluster.ask(request, ApiVersionsResponse)
    check(response.error_code)
    finalized = {one.name: one.max_version_level for one in response.finalized_features}
    return [
        (one.name, one.min_version, one.max_version, finalized.get(one.name, 0))
        for one in sorted(response.supported_features, key=lambda one: one.name)
    ]
