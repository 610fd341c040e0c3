"""The command `odradek record produce`."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import typer

from odradek.tools.cli.clients.record_options import (
    KeyFormat,
    KeyMessage,
    KeySchema,
    KeySeparator,
    Null,
    RegistryUrl,
    ValueFormat,
    ValueMessage,
    ValueSchema,
    encode_null,
    make_registry_source,
    translated_errors,
)
from odradek.tools.cli.groups import split_pairs
from odradek.tools.cli.session import EXIT_FAILED, EXIT_USAGE, CommandError, Session
from odradek.tools.cli.terminal.completions import complete_topics
from odradek.tools.cli.terminal.progress import show_progress
from odradek.tools.kafka.cluster import RequestError

if TYPE_CHECKING:
    from odradek.tools.records.checking import RecordChecker
    from odradek.tools.records.producing import RecordProducer

_REPORTED_ERRORS: Final = 10


def produce(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topic.")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Files of records; standard input without any.")
    ] = None,
    input_: Annotated[
        Literal["lines", "json", "files"],
        typer.Option(
            "--input", "-i", help="lines: values; json: an object a line, as of consume --json; files: values."
        ),
    ] = "lines",
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Key of records without one.")] = None,
    key_separator: KeySeparator = None,
    null: Null = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="name=value", help="Header of all; repeatable.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Partition of all records.")
    ] = None,
    any_partition: Annotated[
        bool, typer.Option("--any-partition", help="Ignore the partitions in JSON; the key chooses.")
    ] = False,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], typer.Option("--compression", "-z", help="Codec.")
    ] = "none",
    acks: Annotated[Literal["all", "1", "0"], typer.Option(help="all: idempotent and in order.")] = "all",
    transaction: Annotated[
        bool, typer.Option("--transaction", help="All records in one transaction, or none if one fails.")
    ] = False,
    transactional_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Transactional id, with --transaction (a unique one).")
    ] = None,
    key_format: KeyFormat = "text",
    value_format: ValueFormat = "text",
    key_schema: KeySchema = None,
    value_schema: ValueSchema = None,
    key_message: KeyMessage = None,
    value_message: ValueMessage = None,
    registry: RegistryUrl = None,
) -> int:
    """Send records from standard input or files to a topic.

    A record that fails is reported with its line; the others are sent. --dry-run reads and checks the records.
    """
    from odradek.tools.records.batches import collecting_rarely
    from odradek.tools.records.checking import RecordChecker
    from odradek.tools.records.decoding import PartFormat
    from odradek.tools.records.encoding import make_encoder
    from odradek.tools.records.input import Encoders, Template

    if transaction and acks != "all":
        raise CommandError(f"--transaction excludes --acks {acks}", exit_code=EXIT_USAGE)
    if transactional_id is not None and not transaction:
        raise CommandError("--transactional-id requires --transaction", exit_code=EXIT_USAGE)
    if key_separator == "":
        raise CommandError("--key-separator is empty", exit_code=EXIT_USAGE)
    if key_separator is not None and input_ != "lines":
        raise CommandError(f"--key-separator excludes --input {input_}", exit_code=EXIT_USAGE)
    pairs = split_pairs(headers or [], "--header")
    with translated_errors(), ExitStack() as stack, collecting_rarely():
        find_registry = make_registry_source(session, registry)
        partition_count = _count_partitions(session, topic)
        registers = not session.is_dry_run
        key_part = PartFormat(key_format, key_schema, key_message)
        value_part = PartFormat(value_format, value_schema, value_message)
        encoders = Encoders(
            make_encoder(key_part, find_registry, f"{topic}-key", registers=registers),
            make_encoder(value_part, find_registry, f"{topic}-value", registers=registers),
        )
        template = Template(
            None if key is None else encoders.key.encode_text(key.encode("utf-8", "surrogateescape")),
            [(name, value.encode("utf-8", "surrogateescape")) for name, value in pairs.items()],
            -1 if partition is None else partition,
            not any_partition,
        )
        streams = _open_files(stack, files or [])
        total_bytes = sum(path.stat().st_size for path in files or [])
        progress = stack.enter_context(show_progress(f"producing to {topic}", total_bytes, is_wanted=bool(files)))
        producer: RecordProducer | RecordChecker
        if session.is_dry_run:
            producer = RecordChecker(partition_count, _make_error_reporter(session), is_transaction=transaction)
        else:
            producer = _make_producer(session, topic, compression, acks, transaction, transactional_id)
        separator = None if key_separator is None else key_separator.encode("utf-8", "surrogateescape")
        _send(producer, input_, streams, encoders, template, separator, encode_null(null), progress)
    return _report(session, topic, producer)


def _count_partitions(session: Session, topic: str) -> int:
    """Return the number of partitions. Raises RequestError without the topic, with the command that creates it."""
    try:
        [found] = session.cluster.fetch_topics([topic])
    except RequestError as error:
        if error.code != "UNKNOWN_TOPIC_OR_PARTITION":
            raise
        message = f"{error}; `odradek topic create {topic}` creates it"
        raise RequestError(error.code, message, error.similar) from None
    return len(found.partitions)


def _open_files(stack: ExitStack, files: list[Path]) -> list[tuple[str, BinaryIO]]:
    """Return open files with what errors have before the line."""
    if not files:
        return [("", sys.stdin.buffer)]
    streams: list[tuple[str, BinaryIO]] = []
    for path in files:
        try:
            stream = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}", exit_code=EXIT_USAGE) from None
        streams.append((f"{path}: " if len(files) > 1 else "", stream))
    return streams


def _make_producer(
    session: Session, topic: str, compression: str, acks: str, transaction: bool, transactional_id: str | None
) -> "RecordProducer":
    import uuid

    from odradek.tools.kafka.connection.confluent_settings import make_confluent_settings
    from odradek.tools.kafka.transactions import TRANSACTION_KEY
    from odradek.tools.records.producing import RecordProducer

    settings: dict[str, Any] = {
        **make_confluent_settings(session.connection),
        "compression.type": compression,
        "acks": acks,
        "enable.idempotence": acks == "all",
    }
    if transaction:
        used_id = transactional_id or f"odradek-record-produce-{uuid.uuid4().hex}"
        # librdkafka waits for a coordinator without a word.
        session.cluster.find_coordinators([used_id], TRANSACTION_KEY)
        settings["transactional.id"] = used_id
    return RecordProducer(settings, topic, _make_error_reporter(session))


def _make_error_reporter(session: Session) -> Callable[[str], None]:
    """Return the function that reports the errors of records, and only counts them if there are many."""
    reported = 0

    def report(message: str) -> None:
        nonlocal reported
        reported += 1
        if reported <= _REPORTED_ERRORS:
            session.write_error(message)
        elif reported == _REPORTED_ERRORS + 1:
            session.write_error("more records fail, which are only counted")

    return report


def _send(
    producer: "RecordProducer | RecordChecker",
    kind: str,
    streams: list[tuple[str, BinaryIO]],
    encoders: Any,
    template: Any,
    separator: bytes | None,
    null: bytes | None,
    progress: Any,
) -> None:
    from odradek.tools.records import input as sources

    producer.begin()
    try:
        is_plain = kind == "lines" and encoders.value.is_text and separator is None and null is None
        if is_plain and template.key is None and not template.headers and template.partition < 0 and len(streams) == 1:
            producer.send_values(sources.read_chunks(streams[0][1]), progress)
        elif kind == "files":
            producer.send(sources.read_files(streams, encoders, template, progress))
        else:
            parse = (
                sources.make_json_parser(encoders, template)
                if kind == "json"
                else sources.make_line_parser(encoders, template, separator, null)
            )
            producer.send(sources.read_lines(streams, parse, progress))
        producer.finish()
    except KeyboardInterrupt:
        producer.abandon()
        raise


def _report(session: Session, topic: str, producer: "RecordProducer | RecordChecker") -> int:
    if session.output.is_json:
        dry_run = {"dry_run": True} if session.is_dry_run else {}
        counts = {"produced": producer.produced, "failed": producer.failed}
        session.output.write_json({"topic": topic, **counts, **dry_run})
    else:
        verbs = ("would be produced", "would fail") if session.is_dry_run else ("produced", "failed")
        failed = f", {producer.failed} {verbs[1]}" if producer.failed else ""
        count = f"{producer.produced} record{'' if producer.produced == 1 else 's'}"
        session.output.write_line(f"{count} {verbs[0]} to {topic}{failed}")
    return EXIT_FAILED if producer.failed else 0
