"""BROKER_LOGGER resources: names, levels, changes, and the error of each fault."""

import logging

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from odradek.replication.controller.admin.broker_loggers import KAFKA_LOGGERS, LEVELS
from odradek.replication.controller.admin.tests.test_config_admin import (
    APPEND,
    BROKER,
    DELETE,
    LOGGER,
    SET,
    SUBTRACT,
    describe,
    increment,
    replace,
    resources,
)
from odradek.replication.controller.configs.sources import ConfigSource
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster

E = ErrorCode
NAME = "replication.tests.broker_loggers"


@pytest.fixture
def own():
    """A logger whose resource is NAME. The levels of all loggers are restored after the test."""
    logger = logging.getLogger(f"odradek.{NAME}")
    names = [None, *logging.root.manager.loggerDict, *KAFKA_LOGGERS.values()]
    levels = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    logging.root.setLevel(logging.INFO)
    logger.setLevel(logging.NOTSET)
    yield logger
    for changed, level in levels:
        changed.setLevel(level)


@pytest.fixture
def cluster(own):
    return Cluster()


def levels(cluster, keys=None):
    result = describe(cluster, LOGGER, "1", keys)
    assert result.error_code == 0
    return {entry.name: entry.value for entry in result.configs}


def alter(cluster, *changes, broker="1", authorize=lambda kind, name: None, validate_only=False):
    """Return the code and the message of a change."""
    request = IncrementalAlterConfigsRequest(
        validate_only=validate_only, resources=resources((LOGGER, broker, changes))
    )
    [result] = run_now(cluster.config_admin.incremental_alter_configs(request, authorize)).responses
    return result.error_code, result.error_message


def test_loggers_have_the_names_of_log_lines_and_of_kafka(cluster):
    found = levels(cluster)
    assert found["root"] == "INFO"
    assert {NAME, "replication", "replication.controller", *KAFKA_LOGGERS} <= set(found)
    assert not [name for name in found if name.startswith("odradek.")]


def test_an_entry_is_not_a_default_and_can_be_changed(cluster):
    [entry] = describe(cluster, LOGGER, "1", [NAME]).configs
    assert (entry.name, entry.value, entry.config_source) == (NAME, "INFO", ConfigSource.DYNAMIC_BROKER_LOGGER)
    assert (entry.read_only, entry.is_sensitive, entry.synonyms, entry.documentation) == (False, False, [], "")


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_takes_effect_at_once_and_until_it_is_removed(cluster, own, level):
    assert alter(cluster, (NAME, SET, level)) == (0, None)
    assert (own.level, levels(cluster, [NAME])) == (LEVELS[level], {NAME: level})
    assert alter(cluster, (NAME, DELETE, None)) == (0, None)
    assert (own.level, levels(cluster, [NAME])) == (logging.NOTSET, {NAME: "INFO"})


def test_a_logger_without_a_level_has_that_of_the_next_one_above_it(cluster):
    assert increment(cluster, (LOGGER, "1", [("replication.tests", SET, "ERROR"), ("root", SET, "DEBUG")])) == [0]
    assert levels(cluster, [NAME, "replication.tests", "replication", "root"]) == {
        NAME: "ERROR",
        "replication.tests": "ERROR",
        "replication": "DEBUG",
        "root": "DEBUG",
    }
    assert increment(cluster, (LOGGER, "1", [("replication.tests", DELETE, "ignored")])) == [0]
    assert levels(cluster, [NAME]) == {NAME: "DEBUG"}


@pytest.mark.parametrize(("kafka", "name"), KAFKA_LOGGERS.items())
def test_a_name_of_kafka_is_a_second_name_of_a_logger(cluster, kafka, name):
    assert alter(cluster, (kafka, SET, "WARN")) == (0, None)
    assert logging.getLogger(name).level == logging.WARNING
    assert levels(cluster, [name.removeprefix("odradek.")]) == {name.removeprefix("odradek."): "WARN"}
    assert alter(cluster, (name.removeprefix("odradek."), SET, "ERROR")) == (0, None)
    assert levels(cluster, [kafka]) == {kafka: "ERROR"}


def test_levels_between_those_of_kafka_are_described_by_the_next_lower_one(cluster, own):
    for number, expected in ((60, "FATAL"), (35, "WARN"), (7, "TRACE"), (1, "TRACE")):
        own.setLevel(number)
        assert levels(cluster, [NAME]) == {NAME: expected}


def test_a_change_is_logged_with_the_previous_level(cluster, own, caplog):
    alter(cluster, (NAME, SET, "WARN"))
    assert caplog.messages[-1] == f"changed the level of a logger name={NAME} old=INFO new=WARN"


UNSUPPORTED = "as it is not a supported log level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"


@pytest.mark.parametrize(
    ("broker", "change", "code", "message"),
    [
        ("1", ("no.such", SET, "INFO"), E.INVALID_CONFIG, "Logger no.such does not exist!"),
        ("1", ("no.such", SET, "LOUD"), E.INVALID_CONFIG, "Logger no.such does not exist!"),
        ("1", ("no.such", DELETE, None), E.INVALID_CONFIG, "Logger no.such does not exist!"),
        ("1", ("", SET, "INFO"), E.INVALID_CONFIG, "Logger  does not exist!"),
        ("1", (NAME, SET, "LOUD"), E.INVALID_CONFIG, f"Cannot set the log level of {NAME} to LOUD {UNSUPPORTED}"),
        ("1", (NAME, SET, "warn"), E.INVALID_CONFIG, f"Cannot set the log level of {NAME} to warn {UNSUPPORTED}"),
        ("1", (NAME, SET, ""), E.INVALID_CONFIG, f"Cannot set the log level of {NAME} to  {UNSUPPORTED}"),
        ("1", (NAME, SET, None), E.INVALID_REQUEST, f"Null value not supported for : {NAME}"),
        ("1", ("root", DELETE, None), E.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        (
            "1",
            (NAME, APPEND, "INFO"),
            E.INVALID_REQUEST,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        (
            "1",
            ("no.such", SUBTRACT, "INFO"),
            E.INVALID_REQUEST,
            "SUBTRACT operation is not allowed for the BROKER_LOGGER resource",
        ),
        (
            "1",
            (NAME, 7, "INFO"),
            E.INVALID_REQUEST,
            "Unknown operation type 7 is not allowed for the BROKER_LOGGER resource",
        ),
        ("2", (NAME, SET, "INFO"), E.INVALID_REQUEST, "Unexpected node id. Expected 1, but received 2"),
        ("", (NAME, SET, "INFO"), E.INVALID_REQUEST, "a broker id must be an integer, but it is: "),
        ("one", (NAME, SET, "INFO"), E.INVALID_REQUEST, "a broker id must be an integer, but it is: one"),
    ],
)
def test_faults(cluster, own, broker, change, code, message):
    before = levels(cluster)
    others = ("replication", SET, "DEBUG"), ("replication.tests", SET, "DEBUG")
    assert alter(cluster, *others, change, broker=broker) == (code, message)
    assert levels(cluster) == before


def test_validation_changes_nothing(cluster):
    before = levels(cluster)
    assert alter(cluster, (NAME, SET, "DEBUG"), validate_only=True) == (0, None)
    assert levels(cluster) == before
    assert alter(cluster, (NAME, SET, "LOUD"), validate_only=True)[0] == E.INVALID_CONFIG


def test_the_error_of_a_missing_right_precedes_those_of_the_change(cluster, own):
    asked = []

    def refuse(kind, name):
        asked.append((kind, name))
        return KafkaError(E.CLUSTER_AUTHORIZATION_FAILED)

    assert alter(cluster, (NAME, SET, "LOUD"), authorize=refuse) == (E.CLUSTER_AUTHORIZATION_FAILED, None)
    assert alter(cluster, (NAME, SET, "DEBUG"), broker="2", authorize=refuse)[0] == E.CLUSTER_AUTHORIZATION_FAILED
    assert asked == [(LOGGER, "1"), (LOGGER, "2")]
    assert own.level == logging.NOTSET
    assert alter(cluster, (NAME, SET, None), authorize=refuse)[0] == E.INVALID_REQUEST


@pytest.mark.parametrize(
    ("broker", "message"),
    [
        ("", "Broker id must not be empty"),
        ("2", "Unexpected broker id, expected 1 but received 2"),
        ("x", "a broker id must be an integer, but it is: x"),
    ],
)
def test_only_the_loggers_of_this_broker_are_described(cluster, broker, message):
    result = describe(cluster, LOGGER, broker)
    assert (result.error_code, result.error_message, list(result.configs)) == (E.INVALID_REQUEST, message, [])


def test_alter_configs_does_not_have_loggers(cluster, own):
    assert replace(cluster, (LOGGER, "1", [(NAME, "DEBUG")])) == [E.INVALID_REQUEST]
    assert own.level == logging.NOTSET


def test_levels_change_while_there_is_no_controller(cluster, own, monkeypatch):
    monkeypatch.setattr(type(cluster.controller.context), "is_active", False)
    assert increment(cluster, (LOGGER, "1", [(NAME, SET, "DEBUG")])) == [0]
    assert own.level == logging.DEBUG
    with pytest.raises(KafkaError):
        increment(cluster, (LOGGER, "1", [(NAME, SET, "INFO")]), (BROKER, "", []))


@pytest.mark.parametrize("kind", [BROKER, LOGGER])
@pytest.mark.parametrize("name", ["9" * 5000, f"+{'9' * 5000}", "2147483648", "²", "1_0"])
def test_a_number_that_is_no_broker_id_is_refused(cluster, kind, name):
    assert increment(cluster, (kind, name, [("no.such", SET, "1")])) == [E.INVALID_REQUEST]
    assert describe(cluster, kind, name).error_code == E.INVALID_REQUEST


@pytest.mark.parametrize("name", ["1", "+1", "0" * 5000 + "1"])
def test_a_broker_id_may_have_a_sign_and_zeros(cluster, own, name):
    assert increment(cluster, (LOGGER, name, [(NAME, SET, "DEBUG")])) == [0]
