"""The command line of pipelines: `odradek pipeline COMMAND FILE`.

Exit codes: 0; 1 when a command failed, with a line on standard error; 2 for a wrong command line or a wrong file, with
a line `file:line: message` for each mistake; 130 after Ctrl-C, except for `run`, which Ctrl-C stops normally.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from odradek.spark_it.definition import reference
from odradek.spark_it.definition.durations import instant_ms
from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.definition.reader import load
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.kafka.group import ClusterError
from odradek.spark_it.state import pid_lock, reset, status
from odradek.spark_it.state.checkpoint import CheckpointError
from odradek.spark_it.state.lock import DamagedLockError, LockError, read_lock, why_stateful
from odradek.spark_it.validation import connections, report

if TYPE_CHECKING:
    from odradek.spark_it.kafka.cluster import Cluster

PROGRAM = "odradek pipeline"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _FailedError(Exception):
    """A failure of a command, with its reason."""


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        _say(f"{message} (see {self.prog} --help)")
        raise SystemExit(EXIT_USAGE)


def _to(text: str) -> reset.To:
    if text in ("earliest", "committed"):
        return text  # type: ignore[return-value]
    try:
        return instant_ms(text)
    except ValueError:
        wanted = "earliest, committed, or an instant such as 2026-01-01T00:00:00Z"
        raise argparse.ArgumentTypeError(f"{text} is not {wanted}") from None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Pipelines on Spark, each declared in a file.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], help_: str, *, of_file: bool = True) -> _Parser:
        made: _Parser = commands.add_parser(name, help=help_, description=f"{help_[:1].upper()}{help_[1:]}.")
        if of_file:
            made.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
        made.set_defaults(run=run)
        return made

    validating = command("validate", _validate, "check a pipeline's file and print the pipeline's guarantee")
    validating.add_argument("--without-spark", action="store_true", help="check only what needs no Spark")
    validating.add_argument("--connect", action="store_true", help="check that topics, schemas and tables exist")
    runs = command("run", _run, "run a pipeline until it is stopped")
    runs.add_argument("--available-now", action="store_true", help="process the available records and exit")
    runs.add_argument("--master", metavar="URL", help="Spark's master; overrides the file's")
    runs.add_argument("--rewind-last", action="store_true", help="repeat the last batch first, as after a crash")
    command("status", _status, "show the progress and lag of a pipeline, running or stopped")
    resetting = command("reset", _reset, "restart a stopped pipeline from other offsets")
    resetting.add_argument(
        "--to",
        type=_to,
        required=True,
        metavar="WHERE",
        help="earliest; committed, the current position; or an instant such as 2026-01-01T00:00:00Z",
    )
    resetting.add_argument("--execute", action="store_true", help="do it; without this option only print the plan")
    command("test", _test, "run the tests in a pipeline's file")
    replaying = command("replay-dlq", _replay, "send dead letters to the topics that they come from")
    replaying.add_argument("--execute", action="store_true", help="do it; without this option only print the plan")
    replaying.add_argument(
        "--partly-written",
        choices=("send", "leave"),
        help="treatment of records of which the sink may already have other rows, which would be written again",
    )
    written = command("reference", _reference, "write the reference of all keys", of_file=False)
    written.add_argument(
        "--into", type=Path, metavar="PAGE", help="replace the reference in this page instead of printing it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code, or raise SystemExit with it."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except (_FailedError, CheckpointError, LockError, reset.ResetError, pid_lock.AlreadyRunningError) as error:
        _say(str(error))
    except OSError as error:
        _say(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FAILED


def _validate(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    guaranteed, tables = report.validate(pipeline), list[str]()
    if not options.without_spark:
        try:
            from odradek.spark_it.validation import spark_checks
        except ImportError as error:
            _say(f"Spark did not analyse it: package {error.name} is missing (pip install 'odradek[spark]')")
        else:
            try:
                if options.connect:
                    guaranteed, tables = spark_checks.connect(pipeline, _say)
                else:
                    guaranteed = spark_checks.validate(pipeline, _say)
            except spark_checks.FAILURES as error:
                raise _FailedError(str(error)) from None
    _print([*report.summary(pipeline, guaranteed), *tables])
    if not options.connect:
        return 0
    return _with_cluster(pipeline, lambda cluster: _print(connections.found(pipeline, cluster)))


def _run(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    try:
        from odradek.spark_it.execution import runner
    except ImportError as error:
        raise _missing(error) from None
    chosen = runner.Options(options.available_now, options.master, options.rewind_last)
    try:
        runner.run(pipeline, chosen, lambda line: _note(f"{pipeline.name}: {line}"))
    except runner.FAILURES as error:
        raise _FailedError(str(error)) from None
    return 0


def _status(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    lock = read_lock(pipeline.state_folder)
    _print(status.of_state(pipeline, why_stateful(pipeline, lock), lock))
    if not any(isinstance(source, TopicSource) for source in pipeline.sources.values()):
        return 0
    return _with_cluster(pipeline, lambda cluster: _print(status.of_group(pipeline, lock, cluster)))


def _reset(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    with pid_lock.exclusively(pipeline.state_folder):
        return _with_cluster(pipeline, lambda cluster: _reset_held(pipeline, options, cluster))


def _reset_held(pipeline: Pipeline, options: argparse.Namespace, cluster: "Cluster") -> int:
    from odradek.spark_it.exactly_once.fencing import fence_all
    from odradek.spark_it.interfaces.sink import SinkError

    try:
        old = read_lock(pipeline.state_folder)
    except DamagedLockError as error:
        _say(str(error))
        old = None
    stateful = why_stateful(pipeline, old)
    if options.execute:
        try:
            fence_all(pipeline, stateful, old)
        except SinkError as error:
            raise _FailedError(str(error)) from None
    planned = reset.plan(pipeline, stateful, old, options.to, cluster, int(time.time() * 1000))
    _print(f"{pipeline.name}: {sentence}" for sentence in planned.sentences)
    if not options.execute:
        return _print([f"{pipeline.name}: nothing is changed yet; --execute does it"])
    reset.carry_out(pipeline, planned, cluster)
    return _print([f"{pipeline.name}: is reset"])


def _test(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    report.validate(pipeline)
    try:
        from odradek.spark_it.validation import spark_checks
    except ImportError as error:
        raise _missing(error) from None
    try:
        return 0 if spark_checks.test(pipeline, _put) else EXIT_FAILED
    except spark_checks.FAILURES as error:
        raise _FailedError(str(error)) from None


def _replay(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    try:
        from odradek.spark_it.dead_letters import replay
    except ImportError as error:
        raise _missing(error) from None

    def do(cluster: "Cluster") -> int:
        try:
            lines = replay.replay(pipeline, cluster, execute=options.execute, partly_written=options.partly_written)
            return _print(lines)
        except replay.ReplayError as error:
            raise _FailedError(str(error)) from None

    return _with_cluster(pipeline, do)


def _missing(error: ImportError) -> _FailedError:
    return _FailedError(f"package {error.name} is missing: pip install 'odradek[spark]'")


def _reference(options: argparse.Namespace) -> int:
    if options.into is None:
        return _print([reference.markdown().removesuffix("\n")])
    try:
        page = reference.into(options.into.read_text("utf-8"))
    except ValueError as error:
        raise _FailedError(f"{options.into}: {error}") from None
    options.into.write_text(page, "utf-8")
    return 0


def _load(path: Path) -> Pipeline:
    try:
        return load(path, os.environ)
    except OSError as error:
        _say(f"cannot read {path}: {error.strerror}")
        raise SystemExit(EXIT_USAGE) from None


def _with_cluster(pipeline: Pipeline, do: Callable[["Cluster"], int]) -> int:
    try:
        from odradek.spark_it.kafka.cluster import Cluster
    except ImportError as error:
        raise _missing(error) from None
    try:
        return do(Cluster(pipeline.settings))
    except ClusterError as error:
        raise _FailedError(str(error)) from None


def _print(lines: Iterable[str]) -> int:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has had enough; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _put(line: str) -> None:
    _print([line])


def _note(line: str) -> None:
    sys.stderr.write(f"{' '.join(line.split())}\n")
    sys.stderr.flush()


def _say(line: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {' '.join(line.split())}\n")
