"""Options of the commands that can also use the metadata store of a broker that is stopped."""

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.tools.cli.session import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from odradek.server.config import BrokerConfig

StoreFile = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="server.properties", help="Use the metadata store of this broker, which is stopped."
    ),
]
StoreOverrides = Annotated[
    list[str] | None,
    typer.Option("--override", metavar="name=value", help="Like --store: set a property of the broker; repeatable."),
]


def find_store(file: str | None, overrides: list[str] | None) -> "BrokerConfig | None":
    """Return the configuration of the broker whose store is used; None to use the cluster. Raises CommandError."""
    if file is None and not overrides:
        return None
    from odradek.server.store_tools.errors import UsageError
    from odradek.server.store_tools.store import load_store_config

    try:
        return load_store_config(file, overrides or [])
    except UsageError as error:
        raise CommandError(*error.args, exit_code=EXIT_USAGE) from None
