"""The commands and code in README.md have the results that it states; only ports are replaced."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import odradek
from odradek.server.config.loading import OWN_LISTENERS
from odradek.testing import OdradekBroker

README = (Path(odradek.__file__).parent.parent / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
README_ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 60


def block(word):
    """The one Python block that contains the word."""
    (found,) = [block for block in BLOCKS if word in block]
    return found


def run(*arguments, **options):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **options)


@pytest.fixture(scope="module")
def broker():
    """A broker with the settings of `odradek start`; OdradekBroker replaces port and directory."""
    properties = {"group.initial.rebalance.delay.ms": "3000", "offsets.topic.num.partitions": "50"}
    with OdradekBroker(properties) as broker:
        yield broker


def type_in(code, broker):
    assert README_ADDRESS in code
    done = run("-c", code.replace(README_ADDRESS, broker.bootstrap_servers))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_block_of_the_readme_is_run():
    """The block for Spark is run by the tests of spark_it."""
    tried = [block(word) for word in ("import KafkaConsumer", "confluent_kafka", "pyspark", "test_it", "with Odradek")]
    assert sorted(tried) == sorted(BLOCKS)


def test_five_lines_with_kafka_python(broker):
    lines = type_in(block("import KafkaConsumer"), broker)
    assert lines[0] == "0 b'odradek' b'hello'"


def test_five_lines_with_confluent_kafka(broker):
    assert type_in(block("confluent_kafka"), broker) == ["b'hello'"]


def test_a_client_takes_five_lines():
    for word in ("import KafkaConsumer", "confluent_kafka", "pyspark"):
        assert len(block(word).splitlines()) <= 6, word


def test_the_broker_without_pytest(tmp_path):
    lines = run("-c", block("with Odradek"), env={**os.environ, "TMPDIR": str(tmp_path)}).stdout.splitlines()
    assert len(lines) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", lines[0])
    assert list(tmp_path.iterdir()) == []


def test_the_pytest_plugin(tmp_path):
    (marker,) = re.findall(r"`(@pytest\.mark\.odradek\(.*?\))`", README)
    (tmp_path / "test_mine.py").write_text(
        "import pytest\nfrom kafka import KafkaProducer\n\n"
        + block("test_it")
        + "    producer.send('t', b'v').get(10)\n\n"
        + f"{marker}\n"
        + "def test_with_properties(odradek_broker, odradek_session_broker):\n"
        + "    producer = KafkaProducer(bootstrap_servers=odradek_broker.bootstrap_servers)\n"
        + "    assert producer.partitions_for('three') == {0, 1, 2}\n"
        + "    assert odradek_session_broker.port != odradek_broker.port\n"
    )
    done = run("-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path), cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_commands(tmp_path):
    commands = re.findall(r"^    odradek (.*?)(?:  +#.*)?$", README, re.MULTILINE)
    assert commands == ["start [server.properties] [--override name=value ...]", "config properties", "--version"]
    for command in commands[1:]:
        done = run("-m", "odradek", *command.split())
        assert done.returncode == 0 and done.stdout and not done.stderr


def test_make_start_does_what_the_readme_states(tmp_path):
    """The command of `make start`; its address and directory are those that README.md names."""
    makefile = (Path(odradek.__file__).parent.parent / "Makefile").read_text("utf-8")
    assert re.findall(r"^\t\$\(BIN\)/odradek (.*)$", makefile, re.MULTILINE) == ["start"]
    assert f"runs a broker on {README_ADDRESS}, data in ./data" in README
    assert f"PLAINTEXT://{README_ADDRESS}" == OWN_LISTENERS
    free_port = f"listeners={OWN_LISTENERS.replace(':9092', ':0')}"
    command = [sys.executable, "-m", "odradek", "start", "--override", free_port]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stdout if " odradek started " in line)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert f"data={tmp_path / 'data'}" in line


def test_the_license_is_an_spdx_expression():
    project = tomllib.loads((Path(odradek.__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
