"""The command `odradek record consume`."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

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
from odradek.tools.cli.session import EXIT_FAILED, EXIT_USAGE, CommandError, Session
from odradek.tools.cli.terminal.completions import complete_groups, complete_topics
from odradek.tools.cli.terminal.output import count, make_printable
from odradek.tools.cli.terminal.progress import show_progress

if TYPE_CHECKING:
    from odradek.tools.records.decoding import Decoding
    from odradek.tools.records.expressions import Condition
    from odradek.tools.records.reading import Availability, Reader
    from odradek.tools.records.writing import RecordWriter

_SHOWN_CHARACTERS: Final = 1000
_UNLIMITED: Final = sys.maxsize
_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}


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

    with translated_errors():
        wanted = None if partitions is None else parse_partitions(partitions)
        _check_exclusions(session, group, wanted, until, format_, key_separator, follow=follow, commits=commit)
        conditions = _make_conditions(filters or [], key, headers or [], grep)
        find_registry = make_registry_source(session, registry)
        decoding = Decoding(
            make_decoder(PartFormat(key_format, key_schema, key_message), find_registry),
            make_decoder(PartFormat(value_format, value_schema, value_message), find_registry),
        )
        writer = _make_writer(session, decoding, conditions, format_, key_separator, null, is_full=full)
        names = find_topics(session.cluster, topics, are_patterns=regex)
        isolation = {"isolation.level": isolation_level}
        total = None
        if group is None:
            ranges = _find_ranges(session, names, wanted, start, until, isolation_level, follow=follow)
            reader = _make_partition_reader(session, isolation, ranges, follow=follow)
            if not follow:
                total = sum(one.end - one.start for one in ranges.values())
        else:
            subscription = [f"^({name})$" for name in topics] if regex else names
            reader = _make_group_reader(session, isolation, group, subscription, start, follow=follow, commits=commit)
        if max_records is not None and not conditions:
            total = max_records if total is None else min(total, max_records)
        # On a terminal the records themselves show the progress.
        is_wanted = not sys.stdout.isatty()
        what = names[0] if len(names) == 1 else count(len(names), "topic")
        with show_progress(f"consuming {what}", total, is_wanted=is_wanted, are_bytes=False) as advance:
            _copy(reader, writer, _UNLIMITED if max_records is None else max_records, advance)
    if decoding.failures:
        failed = count(decoding.failures, "record")
        session.write_error(f"{failed} could not be decoded, written as stored; {decoding.first_failure}")
    return EXIT_FAILED if strict and decoding.failures else 0


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
    null_text = encode_null(null) or b""
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
    from odradek.tools.kafka.connection.confluent_settings import make_confluent_settings
    from odradek.tools.records.reading import PartitionReader

    settings = {**make_confluent_settings(session.connection), **isolation}
    return PartitionReader(settings, ranges, _make_availability(session), is_endless=follow)


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
    from odradek.tools.kafka.connection.confluent_settings import make_confluent_settings
    from odradek.tools.kafka.groups.description import GROUP_KEY
    from odradek.tools.records.positions import BEGINNING, END, parse_position
    from odradek.tools.records.reading import GroupReader

    kind = parse_position(start or "beginning", 0).kind
    if kind not in (BEGINNING, END):
        raise CommandError(
            "--group permits only --from beginning and end, for partitions without an offset", exit_code=2
        )
    reset = "earliest" if kind == BEGINNING else "latest"
    # librdkafka waits for a coordinator without end and without a word.
    session.cluster.find_coordinators([group], GROUP_KEY)
    settings = {
        **make_confluent_settings(session.connection),
        **isolation,
        "group.id": group,
        "auto.offset.reset": reset,
    }
    return GroupReader(settings, topics, _make_availability(session), is_endless=follow, commits=commits)


def _make_availability(session: Session) -> "Availability":
    from odradek.tools.kafka.cluster import Cluster
    from odradek.tools.records.reading import Availability

    def probe() -> None:
        with Cluster(session.connection) as cluster:
            cluster.fetch_metadata(())

    return Availability(probe, session.warn)


def _copy(reader: "Reader", writer: "RecordWriter", most: int, advance: Callable[[int], None]) -> None:
    """Write records until the end, `most` records or Ctrl-C; `advance` is called with the number that was read."""
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
                advance(count)
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()
