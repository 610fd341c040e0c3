"""Levels of a broker's loggers, which are resources of the type BROKER_LOGGER (KIP-412).

Levels take effect at once and are not persistent. Names are those in the lines of the log, and names of Apache Kafka
for loggers with the same purpose. Errors and their order as of Apache Kafka 4.3.
"""

import logging
from collections.abc import Mapping
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_configs import DescribeConfigsResponseDescribeConfigsResourceResult
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.replication.controller.configs.resources import Operation, parse_broker_id
from odradek.replication.controller.configs.sources import ConfigSource

logger = logging.getLogger(__name__)

ROOT: Final = "root"

LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Kafka's levels, from the highest to the lowest, and those of the standard library."""

_PACKAGE: Final = "odradek"

KAFKA_LOGGERS: Final[dict[str, str]] = {
    "kafka": _PACKAGE,
    "kafka.authorizer.logger": f"{_PACKAGE}.authorizer",
    "kafka.controller": f"{_PACKAGE}.replication.controller",
    "kafka.coordinator.group": f"{_PACKAGE}.coordinator.groups",
    "kafka.coordinator.transaction": f"{_PACKAGE}.coordinator.transactions",
    "kafka.log": f"{_PACKAGE}.log",
    "kafka.log.LogCleaner": f"{_PACKAGE}.log.compaction",
    "kafka.log.LogManager": f"{_PACKAGE}.log.management",
    "kafka.network": f"{_PACKAGE}.server.network",
    "kafka.network.SocketServer": f"{_PACKAGE}.server.network",
    "kafka.request.logger": f"{_PACKAGE}.request",
    "kafka.server.ReplicaFetcherThread": f"{_PACKAGE}.replication.following",
    "kafka.server.ReplicaManager": f"{_PACKAGE}.replication.replicas",
    "org.apache.kafka": _PACKAGE,
    "org.apache.kafka.controller": f"{_PACKAGE}.replication.controller",
    "org.apache.kafka.coordinator.group": f"{_PACKAGE}.coordinator.groups",
    "org.apache.kafka.coordinator.transaction": f"{_PACKAGE}.coordinator.transactions",
    "org.apache.kafka.storage.internals.log": f"{_PACKAGE}.log",
    "org.apache.kafka.storage.internals.log.LogCleaner": f"{_PACKAGE}.log.compaction",
    "org.apache.zookeeper": "kazoo.client",
    "state.change.logger": f"{_PACKAGE}.replication.replicas",
}
"""Names of Kafka's loggers, and the loggers with the same purpose here."""


def list_loggers() -> dict[str, logging.Logger]:
    """Return all loggers by their names, of which a logger may have several."""
    # A copy, because other threads import modules, which creates loggers.
    found = sorted(logging.root.manager.loggerDict.copy(), key=lambda name: name.startswith(f"{_PACKAGE}."))
    names = {name.removeprefix(f"{_PACKAGE}."): name for name in found} | KAFKA_LOGGERS
    return {name: logging.getLogger(names[name]) for name in sorted(names)} | {ROOT: logging.root}


def describe_logger(name: str, described: logging.Logger) -> DescribeConfigsResponseDescribeConfigsResourceResult:
    """Return the level that applies to a logger, which may be that of one above it."""
    return DescribeConfigsResponseDescribeConfigsResourceResult(
        name=name, value=_find_level(described), config_source=ConfigSource.DYNAMIC_BROKER_LOGGER, synonyms=[]
    )


def alter_loggers(
    broker_id: int, resource: IncrementalAlterConfigsRequestAlterConfigsResource, validate_only: bool
) -> None:
    """Set or remove the levels of loggers, all or none of them. Raises KafkaError."""
    name = resource.resource_name
    if parse_broker_id(name) != broker_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {broker_id}, but received {name}")
    loggers = list_loggers()
    for entry in resource.configs:
        _check_change(entry, loggers)
    if validate_only:
        return
    for entry in resource.configs:
        _change_level(loggers[entry.name], entry)


def _change_level(changed: logging.Logger, entry: IncrementalAlterConfigsRequestAlterableConfig) -> None:
    old = _find_level(changed)
    is_set = entry.config_operation == Operation.SET
    changed.setLevel(LEVELS[entry.value or ""] if is_set else logging.NOTSET)
    # A warning, so that a log whose level is raised by the change still has the line.
    logger.warning("changed the level of a logger name=%s old=%s new=%s", entry.name, old, _find_level(changed))


def _check_change(entry: IncrementalAlterConfigsRequestAlterableConfig, loggers: Mapping[str, logging.Logger]) -> None:
    name, operation = entry.name, entry.config_operation
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        title = Operation(operation).name
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{title} operation is not allowed for the BROKER_LOGGER resource"
        )
    if operation not in (Operation.SET, Operation.DELETE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource",
        )
    if name not in loggers:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.SET and entry.value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {entry.value} as it is not a supported log level. Valid log "
            f"levels are {', '.join(sorted(LEVELS))}",
        )
    if operation == Operation.DELETE and name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")


def _find_level(described: logging.Logger) -> str:
    number = described.getEffectiveLevel()
    return next((name for name, level in LEVELS.items() if level <= number), "TRACE")
