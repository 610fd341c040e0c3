"""An exit of the Spark JVM while a pipeline runs."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from odradek.spark_it.execution import runner
from odradek.spark_it.execution.runner import Options, RunError
from odradek.spark_it.spark import session
from spark_it.tests.unit.support import CONSOLE, pipeline

GENERATED = 'name = "g"\n[source.g]\nconnector = "generator"\n'


@pytest.fixture
def java():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def on(process):
    """A session whose JVM is `process`."""

    def stop():
        raise ConnectionRefusedError(111, "Connection refused")

    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)), stop=stop)


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "")])
def test_an_exit_of_the_jvm_is_reported(java, tmp_path, monkeypatch, error):
    def run(_):
        java.kill()
        raise error

    monkeypatch.setattr(session, "build", lambda *_: on(java))
    monkeypatch.setattr(runner._PipelineRun, "run", run)
    with pytest.raises(RunError, match=r"^the Spark JVM exited unexpectedly; see .*/spark\.log$"):
        runner.run(pipeline(GENERATED + CONSOLE, folder=tmp_path), Options(), print)


def test_another_connection_error_is_not_reported_as_an_exit(java, tmp_path, monkeypatch):
    def run(_):
        raise ConnectionResetError(104, "by something else")

    monkeypatch.setattr(runner, "_EXIT_TIMEOUT_S", 0)
    monkeypatch.setattr(runner._PipelineRun, "run", run)
    with pytest.raises(RunError, match="by something else"):
        runner.run(pipeline(GENERATED + CONSOLE, folder=tmp_path), Options(), print, spark=on(java))
