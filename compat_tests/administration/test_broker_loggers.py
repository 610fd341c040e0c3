"""Levels of loggers by kafka-configs.sh: the same output and errors from Odradek and from Apache Kafka."""

import re
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.tools import ToolResult, run

pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.side_by_side]

NAME = "kafka.server.ReplicaManager"
LEVELS = "as it is not a supported log level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"
COMPLETED = "Completed updating config for broker-logger {}."


@pytest.fixture
def broker_id(broker: Any) -> int:
    """The id of the broker."""
    [broker_id] = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=30).brokers
    return int(broker_id)


@pytest.fixture
def configs(broker: Any, broker_id: int) -> Any:
    """Run kafka-configs.sh for the loggers of the broker."""

    def run_tool(action: str, *arguments: str, entity: str | None = None) -> ToolResult:
        entity_name = str(broker_id) if entity is None else entity
        options = ["--entity-type", "broker-loggers", "--entity-name", entity_name]
        server = ["--bootstrap-server", broker.bootstrap_servers]
        return run(tools.CONFIGS, *server, action, *options, *arguments, check=False)

    return run_tool


def levels(configs: Any) -> dict[str, str]:
    """Return the described levels; each line has the form that Kafka's tool gives to all loggers."""
    heading, *lines = configs("--describe").lines
    assert re.fullmatch(r"Dynamic configs for broker-logger \d+ are:", heading)
    found = [re.fullmatch(r"  (\S+)=([A-Z]+) sensitive=false synonyms=\{\}", line) for line in lines]
    assert all(found)
    return {match[1]: match[2] for match in found if match}


def test_a_level_is_set_and_removed(configs: Any, broker_id: int) -> None:
    before = levels(configs)
    assert {"root", NAME, "kafka.log.LogManager", "kafka.network.SocketServer", "kafka.request.logger"} <= set(before)
    assert set(before.values()) <= {"FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"}
    for level in ("FATAL", "TRACE"):
        done = configs("--alter", "--add-config", f"{NAME}={level},kafka.log.LogManager=WARN")
        assert (done.returncode, done.lines) == (0, [COMPLETED.format(broker_id)])
        changed = levels(configs)
        assert (changed[NAME], changed["kafka.log.LogManager"], changed["root"]) == (level, "WARN", before["root"])
    done = configs("--alter", "--delete-config", f"{NAME},kafka.log.LogManager")
    assert (done.returncode, done.lines) == (0, [COMPLETED.format(broker_id)])
    after = levels(configs)
    assert (after[NAME], after["kafka.log.LogManager"]) == (before["root"], before["root"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("--add-config", f"{NAME}=LOUD"), f"Cannot set the log level of {NAME} to LOUD {LEVELS}"),
        (("--add-config", f"{NAME}=debug"), f"Cannot set the log level of {NAME} to debug {LEVELS}"),
        (("--add-config", f"{NAME}="), f"Cannot set the log level of {NAME} to  {LEVELS}"),
        (("--delete-config", "root"), "Removing the log level of the root logger is not allowed"),
        (("--add-config", "no.such=INFO"), "Invalid broker logger(s): no.such"),
        (("--add-config", f"{NAME}=DEBUG,no.such=INFO"), "Invalid broker logger(s): no.such"),
        (("--delete-config", "no.such"), "Invalid broker logger(s): no.such"),
    ],
)
def test_faults_of_changes(configs: Any, change: tuple[str, str], error: str) -> None:
    failed = configs("--alter", *change)
    assert failed.returncode == 1
    assert any(line.endswith(error) for line in failed.stderr.splitlines()), failed
    assert levels(configs)[NAME] != "DEBUG"


def test_another_broker(configs: Any, broker_id: int) -> None:
    other = str(broker_id + 1)
    described = configs("--describe", entity=other)
    assert described.lines == [f"The broker-logger '{other}' doesn't exist and doesn't have dynamic config."]
