"""The command `odradek tls make-test-certificates`."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError

TEST_CERTIFICATES: Final = ("ca.pem", "broker.pem", "client.pem")

commands = Commands("tls", "Certificates for TLS.")


@commands.plain_command("make-test-certificates")
def make_test_certificates(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the files, created if necessary.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files.")] = False,
) -> None:
    """Write ca.pem, broker.pem and client.pem, valid for a year. The authority's key is not kept."""
    from datetime import UTC, datetime

    from odradek.server.security.tls.certificates import write_test_certificates

    if not force and (existing := [name for name in TEST_CERTIFICATES if (directory / name).exists()]):
        raise CommandError(f"{directory / existing[0]} exists; --force overwrites it", exit_code=EXIT_USAGE)
    try:
        names = write_test_certificates(directory, datetime.now(UTC))
    except OSError as error:
        raise CommandError(f"cannot write to {directory}: {error.strerror}", exit_code=EXIT_USAGE) from None
    absolute = directory.absolute()
    sys.stdout.write(
        f"wrote {', '.join(names)} to {absolute}; a broker uses them with\n\n"
        f"    listeners=SSL://localhost:9093\n"
        f"    security.inter.broker.protocol=SSL\n"
        f"    ssl.keystore.type=PEM\n"
        f"    ssl.keystore.location={absolute}/broker.pem\n"
        f"    ssl.truststore.type=PEM\n"
        f"    ssl.truststore.location={absolute}/ca.pem\n\n"
        f"and clients with the same trust store, or ssl.ca.location={absolute}/ca.pem\n"
    )
