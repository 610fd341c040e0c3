"""The command line of pipelines: `odradek pipeline COMMAND FILE`.

Exit codes: 0 for success; 1 for a failed command, with one line on standard error; 2 for an invalid command line or
pipeline file, with one line `file:line: message` per mistake; 130 after Ctrl-C, except for `run`, which Ctrl-C stops
normally.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from odradek.properties import nearest
from odradek.spark_it.definition import reference
from odradek.spark_it.definition.durations import parse_instant_ms
from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.definition.reader import load
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.kafka.requests import ClusterError
from odradek.spark_it.state import pid_lock, reset, status
from odradek.spark_it.state.checkpoint import CheckpointError
from odradek.spark_it.state.lock import DamagedLockError, LockError, find_stateful_reason, read_lock
from odradek.spark_it.validation import connections, report

if TYPE_CHECKING:
    from odradek.spark_it.kafka.cluster import KafkaCluster

PROGRAM = "odradek pipeline"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _FailedError(Exception):
    """A command failed; `str()` has the reason."""


class _Parser(argparse.ArgumentParser):
    """Parser that reports a mistake in one line that refers to `--help`, without argparse's usage text."""

    def error(self, message: str) -> NoReturn:
        hint = ""
        if (match := _UNKNOWN.search(message)) is not None:
            similar = nearest(match["name"].partition("=")[0], _list_names(self))
            hint = f"; did you mean {similar}?" if similar else ""
        _print_error(f"{message}{hint} (see {self.prog} --help)")
        raise SystemExit(EXIT_USAGE)


_UNKNOWN: Final = re.compile("(?:unrecognized arguments: |invalid choice: '?)(?P<name>[^' ]+)")
"""argparse's errors for an unknown option, and for an unknown command or value."""


def _list_names(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Iterate over the options, commands and other fixed values of a parser and those of its commands."""
    for action in parser._actions:
        yield from action.option_strings
        yield from map(str, action.choices or ())
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _list_names(each)


def _reset_target(text: str) -> reset.ResetTarget:
    if text in ("earliest", "committed"):
        return text  # type: ignore[return-value]
    try:
        return parse_instant_ms(text)
    except ValueError:
        expected = "earliest, committed, or an instant such as 2026-01-01T00:00:00Z"
        raise argparse.ArgumentTypeError(f"{text} is not {expected}") from None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `odradek pipeline`."""
    parser = _Parser(prog=PROGRAM, description="Pipelines on Spark, each declared in a file.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], help_: str, *, of_file: bool = True) -> _Parser:
        subparser: _Parser = commands.add_parser(name, help=help_, description=f"{help_[:1].upper()}{help_[1:]}.")
        if of_file:
            subparser.add_argument("file", type=Path, metavar="FILE", help="the pipeline file")
        subparser.set_defaults(run=run)
        return subparser

    validate_parser = command(
        "validate", _validate, "check a pipeline file and print the pipeline's delivery guarantee"
    )
    validate_parser.add_argument("--without-spark", action="store_true", help="skip the checks that need Spark")
    validate_parser.add_argument("--connect", action="store_true", help="check that topics, schemas and tables exist")
    run_parser = command("run", _run, "run a pipeline until it is stopped")
    run_parser.add_argument("--available-now", action="store_true", help="process the available records and exit")
    run_parser.add_argument("--master", metavar="URL", help="Spark master URL; overrides `master` in the file")
    run_parser.add_argument(
        "--rewind-last", action="store_true", help="first repeat the last completed batch, as after a crash"
    )
    status_parser = command("status", _status, "show the progress and lag of a pipeline, running or stopped")
    status_parser.add_argument("--json", action="store_true", help="print one JSON object")
    reset_parser = command("reset", _reset, "let the next run of a stopped pipeline start at other offsets")
    reset_parser.add_argument(
        "--to",
        type=_reset_target,
        required=True,
        metavar="WHERE",
        help="earliest; committed (the current position); or an instant such as 2026-01-01T00:00:00Z",
    )
    reset_parser.add_argument("--execute", action="store_true", help="apply the plan instead of only printing it")
    command("test", _test, "run the tests in a pipeline file")
    replay_parser = command("replay-dlq", _replay, "send dead letters back to the topics from which they were read")
    replay_parser.add_argument("--execute", action="store_true", help="apply the plan instead of only printing it")
    replay_parser.add_argument(
        "--partly-written",
        choices=("send", "leave"),
        help="send or leave records of which the sink may already contain some rows, which a replay writes again",
    )
    reference_parser = command("reference", _reference, "write the reference of all keys", of_file=False)
    reference_parser.add_argument(
        "--into", type=Path, metavar="PAGE", help="replace the reference in this page instead of printing it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code, or raise SystemExit with it."""
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except (_FailedError, CheckpointError, LockError, reset.ResetError, pid_lock.AlreadyRunningError) as error:
        _print_error(str(error))
    except OSError as error:
        _print_error(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FAILED


def _validate(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    pipeline_guarantee, tables = report.validate(pipeline), list[str]()
    if not options.without_spark:
        try:
            from odradek.spark_it.validation import spark_checks
        except ImportError as error:
            _print_error(f"Spark analysis skipped: package {error.name} is missing (pip install 'odradek[spark]')")
        else:
            try:
                if options.connect:
                    pipeline_guarantee, tables = spark_checks.validate_with_tables(pipeline, _print_error)
                else:
                    pipeline_guarantee = spark_checks.validate(pipeline, _print_error)
            except spark_checks.FAILURES as error:
                raise _FailedError(str(error)) from None
    _print([*report.make_summary(pipeline, pipeline_guarantee), *tables])
    if not options.connect:
        return 0
    return _with_cluster(pipeline, lambda cluster: _print(connections.check_connections(pipeline, cluster)))


def _run(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    try:
        from odradek.spark_it.execution import runner
    except ImportError as error:
        raise _make_missing_package_error(error) from None
    run_options = runner.Options(options.available_now, options.master, options.rewind_last)
    try:
        runner.run(pipeline, run_options, lambda line: _print_progress(f"{pipeline.name}: {line}"))
    except runner.FAILURES as error:
        raise _FailedError(str(error)) from None
    return 0


def _status(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    lock = read_lock(pipeline.state_folder)
    state = status.read_state(pipeline, lock)
    if not options.json:
        _print(status.describe_state(state))
    has_topics = any(isinstance(source, TopicSource) for source in pipeline.sources.values())
    lags: status.SourceLags | None = None if has_topics else {}

    def fetch_lags(cluster: "KafkaCluster") -> int:
        nonlocal lags
        lags = status.fetch_lags(pipeline, lock, cluster)
        return 0 if options.json else _print(status.describe_lags(lags))

    try:
        return _with_cluster(pipeline, fetch_lags) if has_topics else 0
    finally:
        if options.json:
            _print([json.dumps(status.make_json(state, lags))])


def _reset(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    with pid_lock.hold_lock(pipeline.state_folder):
        return _with_cluster(pipeline, lambda cluster: _reset_locked(pipeline, options, cluster))


def _reset_locked(pipeline: Pipeline, options: argparse.Namespace, cluster: "KafkaCluster") -> int:
    from odradek.spark_it.exactly_once.fencing import fence_all_slots
    from odradek.spark_it.interfaces.sink import SinkError

    try:
        old = read_lock(pipeline.state_folder)
    except DamagedLockError as error:
        _print_error(str(error))
        old = None
    stateful = find_stateful_reason(pipeline, old)
    if options.execute:
        try:
            fence_all_slots(pipeline, stateful, old)
        except SinkError as error:
            raise _FailedError(str(error)) from None
    reset_plan = reset.plan(pipeline, stateful, old, options.to, cluster, int(time.time() * 1000))
    _print(f"{pipeline.name}: {sentence}" for sentence in reset_plan.sentences)
    if not options.execute:
        return _print([f"{pipeline.name}: nothing was changed; repeat with --execute to apply this plan"])
    reset.execute_plan(pipeline, reset_plan, cluster)
    return _print([f"{pipeline.name}: reset complete"])


def _test(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    report.validate(pipeline)
    try:
        from odradek.spark_it.validation import spark_checks
    except ImportError as error:
        raise _make_missing_package_error(error) from None
    try:
        return 0 if spark_checks.run_tests(pipeline, _print_line) else EXIT_FAILED
    except spark_checks.FAILURES as error:
        raise _FailedError(str(error)) from None


def _replay(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    try:
        from odradek.spark_it.dead_letters import replay
    except ImportError as error:
        raise _make_missing_package_error(error) from None

    def action(cluster: "KafkaCluster") -> int:
        try:
            lines = replay.replay(pipeline, cluster, execute=options.execute, partly_written=options.partly_written)
            return _print(lines)
        except replay.ReplayError as error:
            raise _FailedError(str(error)) from None

    return _with_cluster(pipeline, action)


def _make_missing_package_error(error: ImportError) -> _FailedError:
    return _FailedError(f"package {error.name} is missing: pip install 'odradek[spark]'")


def _reference(options: argparse.Namespace) -> int:
    if options.into is None:
        return _print([reference.make_reference().removesuffix("\n")])
    try:
        page = reference.replace_reference(options.into.read_text("utf-8"))
    except ValueError as error:
        raise _FailedError(f"{options.into}: {error}") from None
    options.into.write_text(page, "utf-8")
    return 0


def _load(path: Path) -> Pipeline:
    try:
        return load(path, os.environ)
    except OSError as error:
        _print_error(f"cannot read {path}: {error.strerror}")
        raise SystemExit(EXIT_USAGE) from None


def _with_cluster(pipeline: Pipeline, action: Callable[["KafkaCluster"], int]) -> int:
    try:
        from odradek.spark_it.kafka.cluster import KafkaCluster
    except ImportError as error:
        raise _make_missing_package_error(error) from None
    try:
        return action(KafkaCluster(pipeline.settings))
    except ClusterError as error:
        raise _FailedError(str(error)) from None


def _print(lines: Iterable[str]) -> int:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe; without this, Python's flush at exit would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _print_line(line: str) -> None:
    _print([line])


def _print_progress(line: str) -> None:
    sys.stderr.write(f"{' '.join(line.split())}\n")
    sys.stderr.flush()


def _print_error(line: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {' '.join(line.split())}\n")
