"""The examples of docs/cli.md, run in their order; and completion of names."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import odradek
from compat_tests.backends import BROKERS
from compat_tests.conftest import SHARED_PROPERTIES

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

PAGE = Path(odradek.__file__).resolve().parent.parent / "docs" / "cli.md"


@pytest.fixture(scope="module")
def broker(backend, kafka_jars):
    """A broker of these tests alone, because the state of the cluster is among the examples."""
    with BROKERS[backend](SHARED_PROPERTIES) as started:
        yield started


def test_the_examples(odradek, admin):
    section = PAGE.read_text("utf-8").partition("## Examples\n")[2].partition("\n## ")[0]
    examples = re.findall(r"^    odradek (.*)$", section, re.MULTILINE)
    assert len(examples) > 20
    for example in examples:
        assert odradek(*shlex.split(example)).out or example in (
            "topic list",
            "group list",
        ), example
    assert "orders" not in admin.topics()


@pytest.mark.parametrize("word", ["topic describe", "group describe", "config describe topic"])
def test_names_are_completed(odradek, broker, topic, word):
    odradek("group", "reset", topic, "--topic", topic, "--to-latest", "--yes")
    words = f"odradek {word} --bootstrap-server {broker.bootstrap_servers} {topic[:-1]}"
    environment = {"_ODRADEK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = f"import os; os.environ.update({environment!r}); from odradek.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert topic in done.stdout.split(), done
