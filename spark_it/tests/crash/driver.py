"""Run one pipeline for each file, on one Spark in one process, which a test kills.

    python -m spark_it.tests.crash.driver LOG FILE...

Each line of standard input has the options of a run, as JSON. The pipelines' messages go to standard output, followed
by ENDED when all have read everything available. The session is that of the first pipeline; Java's output goes to LOG.
Options besides those of the runner:

`refused`     all pipelines must be refused: each prints its reason, then REFUSED follows
`home`, `of`  the folder of the state, and the names of the pipelines, of a run with `refused`
`together`    pipelines wait for each other in their first batch from this number on, then TOGETHER is printed
`twins`       twins of the tasks of one batch write late (`late_twin`)
`doubled`     the names of pipelines whose batches a second driver writes at the same time, like one presumed dead
"""

import contextlib
import json
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from pyspark.java_gateway import ensure_callback_server_started

from compat_tests import limits
from odradek.spark_it.definition.reader import load
from odradek.spark_it.execution import runner
from odradek.spark_it.sinks.connectors import make_sink
from odradek.spark_it.spark import session
from spark_it.tests.crash import late_twin

ENDED = "every pipeline has ended well"
REFUSED = "every pipeline was refused"
TOGETHER = "every pipeline is in a batch"

_output = threading.Lock()


def say(line):
    """Print a line at once: `print` writes the end of the line separately, and another thread may print before it."""
    with _output:
        print(line, flush=True)


def main():
    pipelines = [load(Path(file), os.environ) for file in sys.argv[2:]]
    spark = session.build(pipelines[0], log=Path(sys.argv[1]))
    # A query starts the server if there is none, but two queries must not do so at once.
    ensure_callback_server_started(spark.sparkContext._gateway)
    for line in sys.stdin:
        options = json.loads(line)
        if options.pop("refused", False):
            of, home = options.pop("of", None), options.pop("home", None)
            some = [one for one in pipelines if of is None or one.name in of]
            if home is not None:
                some = [replace(one, settings=one.settings.replace({"home": home})) for one in some]
            if not are_refused(some, spark, runner.Options(**options)):
                return 1
            say(REFUSED)
            continue
        together = options.pop("together", None)
        if "twins" in options:
            late_twin.write_once(options.pop("twins"), say)
        sinks = with_second_driver(make_sink, options.pop("doubled", ()))
        if together is not None:
            sinks = meeting(sinks, together, len(pipelines))
        with patch.object(runner, "make_sink", sinks):
            if not run(pipelines, spark, runner.Options(**options)):
                return 1
        say(ENDED)
    session.end(spark)
    return 0


def with_second_driver(of, names):
    """A `make_sink` whose sinks of these pipelines write each batch twice at the same time, with a second sink. The one
    that is overtaken may fail; the batch is then retried."""

    def made(pipeline, *args):
        sink = of(pipeline, *args)
        if pipeline.name in names:
            write, other = sink.write, of(pipeline, *args)

            def write_twice(*given):
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(other.write, *given)
                    return write(*given)

            sink.write = write_twice
        return sink

    return made


def meeting(of, number, count):
    """A `make_sink` whose sinks wait for each other in their first batch from `number` on."""
    all_there = threading.Barrier(count, lambda: say(TOGETHER), limits.ALL_IN_A_BATCH_S)

    def made(*args):
        sink = of(*args)
        write = sink.write

        def write_together(rows, dead, batch):
            if batch.id >= number:
                sink.write = write
                # A pipeline that has read everything before this batch does not take part.
                with contextlib.suppress(threading.BrokenBarrierError):
                    all_there.wait()
            return write(rows, dead, batch)

        sink.write = write_together
        return sink

    return made


def run(pipelines, spark, options):
    """Run all pipelines; return True if all succeed. If one fails, the others are asked to stop."""
    stop = threading.Event()

    def run_one(pipeline):
        try:
            said = f"{pipeline.name}: {{}}".format
            runner.run(pipeline, options, lambda line: say(said(line)), spark=spark.newSession(), stop=stop)
        except BaseException:
            say(f"{pipeline.name}: {traceback.format_exc()}")
            stop.set()
        return not stop.is_set()

    with ThreadPoolExecutor(len(pipelines)) as pool:
        return all(list(pool.map(run_one, pipelines)))


def are_refused(pipelines, spark, options):
    """Run all pipelines; return True if each is refused."""

    def is_refused(pipeline):
        try:
            runner.run(pipeline, options, lambda line: None, spark=spark.newSession())
        except runner.FAILURES as error:
            say(f"{pipeline.name}: refused: {error}")
            return True
        except BaseException:
            say(f"{pipeline.name}: {traceback.format_exc()}")
        return False

    with ThreadPoolExecutor(len(pipelines)) as pool:
        return all(list(pool.map(is_refused, pipelines)))


if __name__ == "__main__":
    sys.exit(main())
