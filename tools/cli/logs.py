"""The commands `odradek log dump` and `odradek log verify`, which read log directories and use no broker.

`verify` exits with 0 if there are no errors and no warnings, 1 if there are any.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_FAILED, EXIT_USAGE, CommandError
from odradek.tools.cli.terminal.error_reports import FAILED, ErrorReport, write_report
from odradek.tools.cli.terminal.progress import show_progress

if TYPE_CHECKING:
    from odradek.log.storage.filesystem import FileSystem
    from odradek.tools.logs.decoding import Row
    from odradek.tools.logs.directories import PartitionFiles
    from odradek.tools.logs.dump_batches import DumpOptions, RecordLimit

EXIT_FINDINGS: Final = 1

commands = Commands("log", "Log directories and their files, read offline.")

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Log directories, partitions' directories, or segments.", show_default=False),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="Only partitions of this topic; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON object per line.")]


@commands.plain_command("dump")
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Log directories, partitions' directories, or files.", show_default=False),
    ],
    records: Annotated[bool, typer.Option("--records", help="Dump the records in the batches.")] = False,
    from_offset: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Begin at this offset; dumps only batches.")
    ] = None,
    max_records: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after this many records of a partition; only batches.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Only log, index, timeindex, txnindex, snapshot, checkpoint or metadata files; repeatable.",
        ),
    ] = None,
    topic: Topics = None,
    json: Json = False,
) -> int:
    """Show the contents of segments, indexes, snapshots and checkpoints.

    The format is that of kafka-dump-log.sh. Records of internal topics are decoded.
    """
    from odradek.log.storage.read_only import ReadOnlyFileSystem
    from odradek.tools.logs.dump import KINDS, LOG_KIND

    for kind in only or ():
        if kind not in KINDS:
            raise typer.BadParameter(f"{kind} is none of {', '.join(KINDS)}", param_hint="--only")
    if from_offset is not None or max_records is not None:
        only = [LOG_KIND]
    fs = ReadOnlyFileSystem()
    checked = _check_paths(fs, paths)
    _check_topics(fs, checked, topic)
    partitions = _list_by_partition(fs, checked, frozenset(only or KINDS), _selector(topic))
    if from_offset:
        from odradek.tools.logs.dump import needed_segments

        partitions = [needed_segments(files, from_offset) for files in partitions]
    return _dump_files(fs, partitions, from_offset or 0, max_records, topic, has_records=records, is_json=json)


def _list_by_partition(
    fs: "FileSystem", paths: Iterable[str], kinds: frozenset[str], is_selected: "Callable[[PartitionFiles], bool]"
) -> list[list[str]]:
    """Return the files to dump, a list for each directory."""
    from odradek.tools.logs.dump import list_files

    found: dict[str, list[str]] = {}
    for path in paths:
        for file in list_files(fs, path, kinds, is_selected):
            found.setdefault(os.path.dirname(file), []).append(file)
    return list(found.values())


def _dump_files(
    fs: "FileSystem",
    partitions: list[list[str]],
    from_offset: int,
    max_records: int | None,
    topics: list[str] | None,
    *,
    has_records: bool,
    is_json: bool,
) -> int:
    from odradek.tools.logs.dump_batches import DumpOptions, RecordLimit
    from odradek.tools.logs.text import format_json, format_row

    total_bytes = sum(_size_bytes(file) for files in partitions for file in files if file.endswith(".log"))
    unread: list[str] = []
    with show_progress("dumping", total_bytes, is_wanted=not sys.stdout.isatty()) as advance:
        options = DumpOptions(has_records=has_records, from_offset=from_offset, on_progress=advance)
        for files in partitions:
            limit = RecordLimit(max_records)
            for path in files:
                if limit.is_reached:
                    break
                if not is_json:
                    sys.stdout.write(f"Dumping {path}\n")
                for row in _read_rows(fs, path, options, limit, unread, is_json=is_json):
                    if topics and row.get("topic", topics[0]) not in topics:
                        continue  # an entry of a checkpoint of the log directory
                    text = format_json({"file": path, **row}) if is_json else format_row(row)
                    sys.stdout.write(f"{text}\n")
    return EXIT_FAILED if unread else 0


def _read_rows(
    fs: "FileSystem", path: str, options: "DumpOptions", limit: "RecordLimit", unread: list[str], *, is_json: bool
) -> "Iterator[Row]":
    """Yield the rows of a file; report it, and add it to `unread`, if it cannot be read to its end."""
    from odradek.tools.logs.dump import UnknownFileError, dump_file

    try:
        yield from dump_file(fs, path, options, limit)
    except UnknownFileError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
    except OSError as error:
        # The broker may have deleted the file meanwhile.
        unread.append(path)
        write_report(ErrorReport(FAILED, [f"{path}: {error.strerror}"], EXIT_FAILED), is_json=is_json)


def _size_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


@commands.plain_command("verify")
def verify(
    paths: Paths,
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="Check the records in the batches; decompresses them.")
    ] = True,
    topic: Topics = None,
    json: Json = False,
) -> int:
    """Check segments, indexes, snapshots and checkpoints against each other; nothing is changed.

    Exit code: 0 without errors and warnings, 1 with any.
    """
    from odradek.log.storage.read_only import ReadOnlyFileSystem
    from odradek.tools.logs.findings import Report
    from odradek.tools.logs.partition_state import VerifyOptions
    from odradek.tools.logs.verify import NotALogError, count_bytes, select
    from odradek.tools.logs.verify import verify as run
    from odradek.tools.logs.verify_text import format_finding, format_summary

    fs = ReadOnlyFileSystem()
    report = Report(lambda finding: _write(format_finding(finding, is_json=json)))
    try:
        checked = _check_paths(fs, paths)
        selections = [select(fs, path, _selector(topic)) for path in checked]
    except NotALogError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", exit_code=EXIT_FAILED) from None
    _check_topics(fs, checked, topic)
    with show_progress("verifying", count_bytes(fs, selections)) as advance:
        totals = run(fs, selections, VerifyOptions(check_records=records, on_progress=advance), report)
    _write(format_summary(totals, report, is_json=json))
    return 0 if report.is_clean else EXIT_FINDINGS


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _check_paths(fs: "FileSystem", paths: Iterable[str]) -> list[str]:
    """Return the paths as absolute ones, each once. Raises CommandError for one that does not exist."""
    found: dict[str, None] = {}
    for path in paths:
        absolute = os.path.abspath(path)
        if not fs.exists(absolute):
            raise CommandError(f"{path} does not exist", exit_code=EXIT_USAGE)
        found[absolute] = None
    return list(found)


def _check_topics(fs: "FileSystem", paths: Iterable[str], topics: list[str] | None) -> None:
    """Raise CommandError for a topic of which no partition is in the paths."""
    if not topics:
        return
    from odradek.tools.kafka.similar_names import suggest
    from odradek.tools.logs.dump import list_topics

    found = {topic for path in paths for topic in list_topics(fs, path)}
    for topic in topics:
        if topic not in found:
            message = f"there is no partition of topic {topic}{suggest(topic, found)}"
            raise CommandError(message, exit_code=EXIT_USAGE)


def _selector(topics: list[str] | None) -> "Callable[[PartitionFiles], bool]":
    return lambda partition: not topics or partition.topic in topics
