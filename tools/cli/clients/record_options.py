"""Options, errors and the schema registry of the commands `odradek record`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session
from odradek.tools.cli.terminal.completions import complete_formats

if TYPE_CHECKING:
    from odradek.tools.records.registry import Registry

KeyFormat = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        autocompletion=complete_formats,
        help="text, json, hex, base64, int32 and others, avro, protobuf or registry.",
    ),
]
ValueFormat = Annotated[
    str, typer.Option(metavar="FORMAT", autocompletion=complete_formats, help="The same for values.")
]
KeySchema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Schema of keys: Avro's JSON, or a descriptor set of protoc.")
]
ValueSchema = Annotated[Path | None, typer.Option(metavar="FILE", help="The same for values.")]
KeyMessage = Annotated[str | None, typer.Option(metavar="NAME", help="Protobuf message type of keys (the first).")]
ValueMessage = Annotated[str | None, typer.Option(metavar="NAME", help="The same for values.")]
RegistryUrl = Annotated[
    str | None, typer.Option("--registry", metavar="URL", help="Schema registry (schema.registry.url of the profile).")
]
Null = Annotated[str | None, typer.Option("--null", metavar="TEXT", help="Text in lines for a null key or value.")]
KeySeparator = Annotated[
    str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Lines have the key before this text.")
]


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of records as those of commands."""
    from confluent_kafka import KafkaException

    from odradek.tools.records.errors import InvalidOptionError, RegistryError, UnencodableError
    from odradek.tools.records.producing import describe_failure

    try:
        yield
    except InvalidOptionError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
    except UnencodableError as error:
        raise CommandError(f"--key: {error}", exit_code=EXIT_USAGE) from None
    except RegistryError as error:
        raise CommandError(str(error)) from None
    except KafkaException as error:
        raise describe_failure(error, "client") from None


def make_registry_source(session: Session, url: str | None) -> Any:
    """Return the function that makes the client of the registry when a format needs it."""

    def find_registry() -> "Registry":
        from odradek.tools.kafka.connection.profile import SCHEMA_REGISTRY_URL
        from odradek.tools.records.registry import Registry

        properties = dict(session.connection.properties)
        if url is not None:
            properties[SCHEMA_REGISTRY_URL] = url
        return Registry(properties)

    return find_registry


def encode_null(null: str | None) -> bytes | None:
    return None if null is None else null.encode("utf-8", "surrogateescape")
