"""The command `odradek console`."""

import ipaddress
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session

if TYPE_CHECKING:
    from odradek.tools.console.settings import SchemaFile

_FILE_AND_MESSAGE: Final = re.compile(r"(.+):([A-Za-z_][\w.]*)")

commands = Commands("console", "A web console for a cluster.")


@commands.only_command()
def console(
    session: Session,
    listen: Annotated[
        str, typer.Option("--listen", metavar="host:port", help="Address of the console; port 0 is a free one.")
    ] = "127.0.0.1:8080",
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="File with the password that users must enter."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Serve the pages that change the cluster.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name by which browsers may reach the console; repeatable."),
    ] = None,
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Metrics of a broker, for the lag of readers; repeatable (metrics.listener)."),
    ] = None,
    value_schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=FILE[:MESSAGE]",
            help="Schema of a topic's values: Avro's .avsc, or a descriptor set of protoc; repeatable.",
        ),
    ] = None,
    key_schema: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC=FILE[:MESSAGE]", help="The same for keys; repeatable.")
    ] = None,
    pipeline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", exists=True, help="File of a pipeline, or a folder of them, to show its state; repeatable."
        ),
    ] = None,
) -> None:
    """Serve a web console for the cluster, until it is interrupted.

    Without --password-file the console is reachable from this machine only.
    """
    missing = [name for name in ("flask", "waitress") if find_spec(name) is None]
    if missing:
        command = "pip install 'odradek[console]'"
        raise CommandError(f"odradek console needs {' and '.join(missing)}: {command}", exit_code=EXIT_USAGE)
    from odradek.tools.console.server import listen as open_socket
    from odradek.tools.console.server import make_console, serve
    from odradek.tools.console.settings import ConsoleSettings
    from odradek.tools.kafka.connection.wire_client import Address
    from odradek.tools.records.errors import InvalidOptionError

    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise CommandError(f"--listen {listen} is not host:port", exit_code=EXIT_USAGE)
    if password_file is None and not _is_loopback(host):
        message = f"--listen {listen} is reachable from other machines and requires --password-file"
        raise CommandError(message, exit_code=EXIT_USAGE)
    password = None if password_file is None else _read_password(password_file)
    schemas = [_parse_schema("--value-schema", text) for text in value_schema or ()]
    schemas += [_parse_schema("--key-schema", text) for text in key_schema or ()]
    connection = session.connection
    try:
        listening = open_socket(Address(host, int(port)))
    except OSError as error:
        raise CommandError(f"--listen {listen}: {error.strerror or error}", exit_code=EXIT_USAGE) from None
    bound_port = listening.getsockname()[1]
    names = frozenset(name.lower() for name in [host, *(host_name or [])])
    settings = ConsoleSettings(
        password,
        allow_changes,
        names,
        f"_{bound_port}",
        tuple(metrics_url or ()),
        tuple(pipeline or ()),
        tuple(schemas),
    )
    with listening:
        try:
            made = make_console(connection, settings)
        except InvalidOptionError as error:
            raise CommandError(str(error), exit_code=EXIT_USAGE) from None
        serve(made, listening, _report)


def _parse_schema(option: str, text: str) -> "SchemaFile":
    """Return the schema of an option."""
    from odradek.tools.console.settings import SchemaFile

    topic, separator, place = text.partition("=")
    if not (topic and separator and place):
        raise CommandError(f"{option} {text} is not TOPIC=FILE or TOPIC=FILE:MESSAGE", exit_code=EXIT_USAGE)
    found = _FILE_AND_MESSAGE.fullmatch(place)
    file, message = (place, None) if found is None else (found[1], found[2])
    return SchemaFile(topic, option == "--key-schema", Path(file), message)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_password(file: Path) -> str:
    try:
        password = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"--password-file {file}: {reason}", exit_code=EXIT_USAGE) from None
    if not password:
        raise CommandError(f"--password-file {file} is empty", exit_code=EXIT_USAGE)
    return password


def _report(url: str) -> None:
    sys.stdout.write(f"the console is at {url} (Ctrl-C ends it)\n")
    sys.stdout.flush()
