"""A pipeline on a Spark master with two workers, in processes of their own."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from compat_tests import limits, processes
from compat_tests.apache_kafka import jars
from odradek.spark_it.definition.reader import load
from odradek.spark_it.execution import runner
from spark_it.tests.records import values
from spark_it.tests.spark.engine import order, orders

HERE = Path(__file__).parents[3]
SPARK = Path(pyspark.__file__).parent


class Master:
    """Spark's standalone master with two workers, started as its scripts do, on free ports of this machine."""

    def __init__(self, folder):
        self._folder = folder
        self._processes = []
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK),
            "JAVA_HOME": str(Path(jars.java()).resolve().parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            # Workers use this Python, with the tested package.
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(HERE),
        }

    def _start(self, name, *arguments):
        log = self._folder / f"{name}.log"
        kind = f"org.apache.spark.deploy.{'master.Master' if name == 'master' else 'worker.Worker'}"
        with log.open("wb") as to:
            options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
            command = [str(SPARK / "bin" / "spark-class"), kind, *options]
            streams = {"stdin": subprocess.DEVNULL, "stdout": to, "stderr": to}
            self._processes.append(processes.start(command, cwd=self._folder, env=self._environment, **streams))
        return log

    def _until(self, log, mark, count=1):
        give_up_at = time.monotonic() + limits.TOOL_S
        while log.read_text("utf-8", "replace").count(mark) < count:
            assert all(process.poll() is None for process in self._processes), log.read_text("utf-8", "replace")
            assert time.monotonic() < give_up_at, f"no {mark!r} in {log.read_text('utf-8', 'replace')}"
            time.sleep(0.1)
        return log.read_text("utf-8", "replace").partition(mark)[2].split()[0]

    def __enter__(self):
        try:
            log = self._start("master")
            self.url = self._until(log, "Starting Spark master at ")
            for number in (1, 2):
                work = str(self._folder / f"work{number}")
                self._start(f"worker{number}", "--cores", "1", "--memory", "512m", "--work-dir", work, self.url)
            self._until(log, "Registering worker ", 2)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def running(self):
        """Processes that work in the folder: master, workers, and the executors that the workers have started."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink().is_relative_to(self._folder):
                    found.append(process.name)
        return found

    def executors(self):
        """The number of executors that each worker has started."""
        return [len(list(folder.glob("app-*/*"))) for folder in sorted(self._folder.glob("work?"))]


@pytest.mark.timeout(limits.LONG_TEST_S)
def test_topic_to_topic_continues_on_two_workers(spark, broker, topics, unique, tmp_path):
    """A pipeline starts on this machine and continues on the master, which repeats the last batch."""
    source, dead = topics.create(unique, 4), topics.create(f"{unique}-dead")
    target = topics.create(f"{unique}-out", 2)
    file = tmp_path / "p.toml"
    file.write_text(
        f'name = "{unique}"\nbootstrap.servers = "{broker.bootstrap_servers}"\n'
        f'plugin.path = "{jars.spark_connector_jars()[0].parent}"\n'
        'spark.executor.memory = "512m"\nspark.executor.cores = "1"\nspark.driver.host = "127.0.0.1"\n'
        'spark.driver.bindAddress = "127.0.0.1"\nspark.ui.enabled = "false"\n'
        'spark.sql.codegen.wholeStage = "false"\n'
        f"{orders(source, 'max.offsets.per.trigger = 400')}"
        f'[sink]\nconnector = "topic"\ntopic = "{target}"\nkey.fields = "id"\n'
        f'[errors]\ntolerance = "all"\ndeadletterqueue.topic.name = "{dead}"\n',
        "utf-8",
    )
    topics.produce(source, [order(n) for n in range(500)] + [(b"x", b"bad")])
    said = []
    runner.run(load(file, {}), runner.Options(True), said.append, spark=spark)
    topics.produce(source, [order(n) for n in range(500, 1000)])
    command = [sys.executable, "-m", "odradek.spark_it", "run", "--available-now", "--rewind-last", str(file)]
    with Master(tmp_path) as master:
        done = subprocess.run([*command, "--master", master.url], capture_output=True, text=True, timeout=300, cwd=HERE)
        assert done.returncode == 0, done.stderr
        assert "repeating batch" in done.stderr
        assert all(master.executors()) and len(master.executors()) == 2
    written = values(broker.bootstrap_servers, target)
    assert len(written) == len(set(written)) == 1000
    assert values(broker.bootstrap_servers, dead) == [b"bad"]
    give_up_at = time.monotonic() + 30
    while master.running():
        assert time.monotonic() < give_up_at, master.running()
        time.sleep(0.1)
