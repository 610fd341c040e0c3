"""The command in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests import limits
from compat_tests.apache_kafka import jars
from spark_it.tests.spark.engine import order, orders

COMMAND = [sys.executable, "-m", "odradek.spark_it"]
HERE = Path(__file__).parents[3]


def command(*arguments):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=limits.TOOL_S, cwd=HERE)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def file(tmp_path, broker, unique):
    path = tmp_path / "p.toml"
    connectors = jars.spark_connector_jars()[0].parent
    path.write_text(
        f'name = "{unique}"\nbootstrap.servers = "{broker.bootstrap_servers}"\nplugin.path = "{connectors}"\n'
        f'trigger = "100 milliseconds"\nmaster = "local[1]"\n{orders(unique)}[sink]\nconnector = "console"\n',
        "utf-8",
    )
    return path


def lines_until(stream, wanted):
    """Lines up to the one that contains `wanted`."""
    found = []
    for line in stream:
        found.append(line)
        if wanted in line:
            return found
    raise AssertionError(f"no {wanted!r} in {found}")


def test_a_pipeline_runs_until_it_is_asked_to_stop(file, topics, unique):
    topics.produce(topics.create(unique), [order(1), order(2)])
    with subprocess.Popen(
        [*COMMAND, "run", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            said = lines_until(process.stderr, "batch 0: ")
            # Java's output is in a file.
            assert said[0] == f"{unique}: started\n" and len(said) == 2
            assert said[1].startswith(f"{unique}: batch 0: 2 read, 2 written in ") and said[1].endswith(", lag 0\n")
            assert "|  1|  1.00|2026-01-01 00:00:01|" in "".join(lines_until(process.stdout, "|  2|"))
            code, out, err = command("run", str(file))
            assert (code, out) == (1, "") and err.count("\n") == 1
            assert f"is already running as process {process.pid}" in err
            code, out, err = command("status", str(file))
            assert code == 0 and f"{unique}: running, process {process.pid}\n" in out and "lag 0\n" in out
            topics.produce(unique, [order(3)])
            lines_until(process.stderr, "batch 1: 1 read, 1 written")
            process.send_signal(signal.SIGTERM)
            assert process.wait(limits.TOOL_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert (file.parent / "pipelines" / unique / "spark.log").exists()
    code, out, err = command("status", str(file))
    assert "stopped" in out and "3 read = 3 written + 0 dead letters + 0 dropped" in out and "batch 1, started" in out
