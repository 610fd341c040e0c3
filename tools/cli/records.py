"""The commands `odradek record`."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import typer

from odradek.tools.cli.completions import complete_formats, complete_groups, complete_topics
from odradek.tools.cli.groups import Commands, split_pairs
from odradek.tools.cli.output import make_printable
from odradek.tools.cli.progress import show_progress
from odradek.tools.cli.session import EXIT_FAILED, EXIT_USAGE, CommandError, Session
from odradek.tools.kafka.cluster import RequestError

if TYPE_CHECKING:
    from odradek.tools.records.decoding import Decoding
    from odradek.tools.records.expressions import Condition
    from odradek.tools.records.producing import RecordProducer
    from odradek.tools.records.reading import Reader
    from odradek.tools.records.registry import Registry
    from odradek.tools.records.writing import RecordWriter

_SHOWN_CHARACTERS: Final = 1000
_REPORTED_ERRORS: Final = 10
_UNLIMITED: Final = sys.maxsize
_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}

commands = Commands("record", "Records: consume and produce.")

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


@commands.command("consume")
def consume(
    session: Session,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics, help="Topics.")],
    regex: Annotated[bool, typer.Option("--regex", help="The topics are regular expressions of whole names.")] = False,
    partitions: Annotated[
        str | None, typer.Option("--partitions", "-p", metavar="LIST", help="Only these, such as 0,2-4.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "-o",
            metavar="POSITION",
            help="beginning, end, an offset, -N (the last N), a duration before now (90m, 2h, P1DT2H), a time "
            "(2026-01-31T12:00, @MS). Default: beginning, with --follow end.",
        ),
    ] = None,
    until: Annotated[str, typer.Option("--until", metavar="POSITION", help="Stop before this position.")] = "end",
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for new records, until Ctrl-C.")] = False,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "--max-messages", "-n", min=0, metavar="N", help="Stop after N.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-G",
            metavar="GROUP",
            autocompletion=complete_groups,
            help="Read as a member of a group from its offsets, and commit what was written.",
        ),
    ] = None,
    commit: Annotated[bool, typer.Option("--commit/--no-commit", help="With --group: commit offsets.")] = True,
    isolation_level: Annotated[
        Literal["read_committed", "read_uncommitted"], typer.Option(help="Records of open and aborted transactions.")
    ] = "read_committed",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="CONDITION", help='Only records such as: value.amount > 10 and key =~ "^a"; repeatable.'
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Only records with this key.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME[=TEXT]", help="Only with this header; repeatable.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Only records whose value matches somewhere.")
    ] = None,
    key_format: KeyFormat = "text",
    value_format: ValueFormat = "text",
    key_schema: KeySchema = None,
    value_schema: ValueSchema = None,
    key_message: KeyMessage = None,
    value_message: ValueMessage = None,
    registry: RegistryUrl = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEMPLATE",
            help="As kcat: %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T timestamp; \\n.",
        ),
    ] = None,
    key_separator: KeySeparator = None,
    null: Null = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten values on a terminal.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a record cannot be decoded.")] = False,
) -> int:
    """Write records to standard output: values as lines, JSON or a template, until the end of the topics.

    A record that cannot be decoded is written as stored, and counted at the end.
    """
    from odradek.tools.records.decoding import Decoding, PartFormat, make_decoder
    from odradek.tools.records.positions import find_topics, parse_partitions

    with _translated_errors():
        wanted = None if partitions is None else parse_partitions(partitions)
        _check_exclusions(session, group, wanted, until, format_, key_separator, follow=follow, commits=commit)
        conditions = _make_conditions(filters or [], key, headers or [], grep)
        find_registry = _make_registry_source(session, registry)
        decoding = Decoding(
            make_decoder(PartFormat(key_format, key_schema, key_message), find_registry),
            make_decoder(PartFormat(value_format, value_schema, value_message), find_registry),
        )
        writer = _make_writer(session, decoding, conditions, format_, key_separator, null, is_full=full)
        names = find_topics(session.cluster, topics, are_patterns=regex)
        isolation = {"isolation.level": isolation_level}
        if group is None:
            ranges = _find_ranges(session, names, wanted, start, until, isolation_level, follow=follow)
            reader = _make_partition_reader(session, isolation, ranges, follow=follow)
        else:
            subscription = [f"^{name}$" for name in topics] if regex else names
            reader = _make_group_reader(session, isolation, group, subscription, start, follow=follow, commits=commit)
        _copy(reader, writer, _UNLIMITED if max_records is None else max_records)
    if decoding.failures:
        count = f"{decoding.failures} record{'' if decoding.failures == 1 else 's'}"
        session.write_error(f"{count} could not be decoded, written as stored; {decoding.first_failure}")
    return EXIT_FAILED if strict and decoding.failures else 0


@commands.command("produce")
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

    A record that fails is reported with its line; the others are sent.
    """
    from odradek.tools.records.batches import collecting_rarely
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
    with _translated_errors(), ExitStack() as stack, collecting_rarely():
        find_registry = _make_registry_source(session, registry)
        _check_topic(session, topic)
        encoders = Encoders(
            make_encoder(PartFormat(key_format, key_schema, key_message), find_registry, f"{topic}-key"),
            make_encoder(PartFormat(value_format, value_schema, value_message), find_registry, f"{topic}-value"),
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
        producer = _make_producer(session, topic, compression, acks, transaction, transactional_id)
        separator = None if key_separator is None else key_separator.encode("utf-8", "surrogateescape")
        _send(producer, input_, streams, encoders, template, separator, _encode_null(null), progress)
    return _report(session, topic, producer)


def _check_topic(session: Session, topic: str) -> None:
    """Raise RequestError if the topic of a producer does not exist, with the command that creates it."""
    try:
        session.cluster.fetch_topics([topic])
    except RequestError as error:
        if error.code != "UNKNOWN_TOPIC_OR_PARTITION":
            raise
        message = f"{error}; `odradek topic create {topic}` creates it"
        raise RequestError(error.code, message, error.similar) from None


@contextmanager
def _translated_errors() -> Iterator[None]:
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


def _check_exclusions(
    session: Session,
    group: str | None,
    partitions: list[int] | None,
    until: str,
    template: str | None,
    key_separator: str | None,
    *,
    follow: bool,
    commits: bool,
) -> None:
    rules = (
        (follow and until != "end", "--follow excludes --until"),
        (group is not None and partitions is not None, "--group excludes --partitions"),
        (group is not None and until != "end", "--group excludes --until"),
        (group is None and not commits, "--no-commit requires --group"),
        (session.output.is_json and template is not None, "--json excludes --format"),
        (session.output.is_json and key_separator is not None, "--json excludes --key-separator"),
        (template is not None and key_separator is not None, "--format excludes --key-separator"),
    )
    for is_broken, message in rules:
        if is_broken:
            raise CommandError(message, exit_code=EXIT_USAGE)


def _make_conditions(filters: list[str], key: str | None, headers: list[str], grep: str | None) -> "list[Condition]":
    from odradek.tools.records.expressions import parse_condition, require_header, require_key, require_match

    conditions = [parse_condition(text) for text in filters]
    if key is not None:
        conditions.append(require_key(key))
    for header in headers:
        name, equals, value = header.partition("=")
        conditions.append(require_header(name, value if equals else None))
    if grep is not None:
        conditions.append(require_match(grep))
    return conditions


def _make_registry_source(session: Session, url: str | None) -> Any:
    """Return the function that makes the client of the registry when a format needs it."""

    def find_registry() -> "Registry":
        from odradek.tools.kafka.profile import SCHEMA_REGISTRY_URL
        from odradek.tools.records.registry import Registry

        properties = dict(session.connection.properties)
        if url is not None:
            properties[SCHEMA_REGISTRY_URL] = url
        return Registry(properties)

    return find_registry


def _encode_null(null: str | None) -> bytes | None:
    return None if null is None else null.encode("utf-8", "surrogateescape")


def _make_writer(
    session: Session,
    decoding: "Decoding",
    conditions: "list[Condition]",
    template: str | None,
    key_separator: str | None,
    null: str | None,
    *,
    is_full: bool,
) -> "RecordWriter":
    from odradek.tools.records.formats import format_json, make_line_format, make_shortener, parse_template
    from odradek.tools.records.writing import FormattedWriter, PlainWriter

    stream = sys.stdout.buffer
    null_text = _encode_null(null) or b""
    is_terminal = sys.stdout.isatty()
    accept = (lambda record: all(each(record) for each in conditions)) if conditions else None
    if session.output.is_json:
        return FormattedWriter(stream, decoding, accept, format_json)
    if template is not None:
        return FormattedWriter(stream, decoding, accept, parse_template(template, null_text))
    separator = None if key_separator is None else key_separator.encode("utf-8", "surrogateescape")
    if accept is None and decoding.changes_nothing and not is_terminal:
        return PlainWriter(stream, null_text, separator)
    most = _UNLIMITED // 8 if is_full else _SHOWN_CHARACTERS
    shorten = make_shortener(most, make_printable) if is_terminal else None
    return FormattedWriter(stream, decoding, accept, make_line_format(separator, null_text, shorten))


def _find_ranges(
    session: Session,
    names: list[str],
    partitions: list[int] | None,
    start: str | None,
    until: str,
    isolation_level: str,
    *,
    follow: bool,
) -> Mapping[Any, Any]:
    from odradek.tools.records.positions import find_ranges, parse_position

    now_ms = int(time.time() * 1000)
    position = parse_position(start or ("end" if follow else "beginning"), now_ms)
    level = _ISOLATION[isolation_level]
    return find_ranges(session.cluster, names, partitions, position, parse_position(until, now_ms), level)


def _make_partition_reader(
    session: Session, isolation: Mapping[str, str], ranges: Mapping[Any, Any], *, follow: bool
) -> "Reader":
    from odradek.tools.kafka.confluent_settings import make_confluent_settings
    from odradek.tools.records.reading import PartitionReader

    settings = {**make_confluent_settings(session.connection), **isolation}
    return PartitionReader(settings, ranges, is_endless=follow)


def _make_group_reader(
    session: Session,
    isolation: Mapping[str, str],
    group: str,
    topics: list[str],
    start: str | None,
    *,
    follow: bool,
    commits: bool,
) -> "Reader":
    from odradek.tools.kafka.confluent_settings import make_confluent_settings
    from odradek.tools.records.positions import BEGINNING, END, parse_position
    from odradek.tools.records.reading import GroupReader

    kind = parse_position(start or "beginning", 0).kind
    if kind not in (BEGINNING, END):
        raise CommandError(
            "--group permits only --from beginning and end, for partitions without an offset", exit_code=2
        )
    reset = "earliest" if kind == BEGINNING else "latest"
    settings = {
        **make_confluent_settings(session.connection),
        **isolation,
        "group.id": group,
        "auto.offset.reset": reset,
    }
    return GroupReader(settings, topics, is_endless=follow, commits=commits)


def _copy(reader: "Reader", writer: "RecordWriter", most: int) -> None:
    """Write records until the end, `most` records or Ctrl-C."""
    from odradek.tools.records.batches import collecting_rarely

    stream = sys.stdout.buffer
    try:
        with collecting_rarely():
            while most > 0 and (messages := reader.read()) is not None:
                if not messages:
                    continue
                count, written, size_bytes = writer.write(messages, most)
                stream.flush()
                most -= written
                reader.processed(messages[:count])
                reader.adapt(count, size_bytes)
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()


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

    from odradek.tools.kafka.confluent_settings import make_confluent_settings
    from odradek.tools.records.producing import RecordProducer

    settings: dict[str, Any] = {
        **make_confluent_settings(session.connection),
        "compression.type": compression,
        "acks": acks,
        "enable.idempotence": acks == "all",
    }
    if transaction:
        settings["transactional.id"] = transactional_id or f"odradek-record-produce-{uuid.uuid4().hex}"
    reported = 0

    def report(message: str) -> None:
        nonlocal reported
        reported += 1
        if reported <= _REPORTED_ERRORS:
            session.write_error(message)
        elif reported == _REPORTED_ERRORS + 1:
            session.write_error("more records fail, which are only counted")

    return RecordProducer(settings, topic, report)


def _send(
    producer: "RecordProducer",
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


def _report(session: Session, topic: str, producer: "RecordProducer") -> int:
    if session.output.is_json:
        session.output.write_json({"topic": topic, "produced": producer.produced, "failed": producer.failed})
    else:
        failed = f", {producer.failed} failed" if producer.failed else ""
        count = f"{producer.produced} record{'' if producer.produced == 1 else 's'}"
        session.output.write_line(f"{count} produced to {topic}{failed}")
    return EXIT_FAILED if producer.failed else 0
