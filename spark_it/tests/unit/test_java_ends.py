"""Spark's Java process ends while a pipeline runs on it."""

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
    """A session whose Java is that process."""

    def stop():
        raise ConnectionRefusedError(111, "Connection refused")

    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)), stop=stop)


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "")])
def test_it_is_said_that_java_has_ended(java, tmp_path, monkeypatch, error):
    def run(_):
        java.kill()
        raise error

    monkeypatch.setattr(session, "build", lambda *_: on(java))
    monkeypatch.setattr(runner._Run, "run", run)
    with pytest.raises(RunError, match=r"^the Spark JVM exited unexpectedly; see .*/spark\.log$"):
        runner.run(pipeline(GENERATED + CONSOLE, folder=tmp_path), Options(), print)


def test_it_has_not_ended_where_something_else_fails(java, tmp_path, monkeypatch):
    def run(_):
        raise ConnectionResetError(104, "by something else")

    monkeypatch.setattr(runner, "_EXIT_TIMEOUT_S", 0)
    monkeypatch.setattr(runner._Run, "run", run)
    with pytest.raises(RunError, match="by something else"):
        runner.run(pipeline(GENERATED + CONSOLE, folder=tmp_path), Options(), print, spark=on(java))
