"""Completion of values from the cluster, as bash asks for it."""

import os
import subprocess
import sys

import pytest

from compat_tests.clients import load
from compat_tests.clients.common import ProducerOptions

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

CLIENT = load("confluent")


@pytest.fixture
def complete(broker, tmp_path):
    """Return the completions of the last word of a command line."""

    def run(command: str, *words: str) -> list[str]:
        group, name = command.split()
        line = ["odradek", group, name, "--bootstrap-server", broker.bootstrap_servers, *words]
        environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path),
            "_ODRADEK_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(line),
            "COMP_CWORD": str(len(line) - 1),
        }
        code = "from odradek.__main__ import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stderr == ""
        return done.stdout.split()

    return run


def test_configurations(complete, odradek, topic):
    assert complete("config alter", "topic", topic, "--set", "retention.") == ["retention.bytes=", "retention.ms="]
    assert complete("config alter", "topic", topic, "--delete", "ret") == []
    odradek("config", "alter", "topic", topic, "--set", "retention.ms=777")
    assert complete("config alter", "topic", topic, "--delete", "ret") == ["retention.ms"]
    for name in ("default", str(odradek("cluster", "describe", "--json").json["brokers"][0]["broker"])):
        found = complete("config alter", "broker", name, "--set", "log.cleaner.t")
        assert found == ["log.cleaner.threads="]
    assert complete("config alter", "topic", f"{topic}-missing", "--set", "r") == []


def test_names(complete, broker, topic, unique):
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=unique)):
        assert complete("transaction describe", unique[:-1]) == [unique]
    assert complete("acl list", "--topic", topic) == [topic]
    assert complete("group list", "--state", "E") == ["Empty"]
