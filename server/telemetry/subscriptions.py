"""Subscriptions of client metrics: the configurations of resources of the type CLIENT_METRICS (KIP-714)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from odradek.properties import Property
from odradek.protocol.errors import ErrorCode, KafkaError, shorten
from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CLIENT_METRICS, EntityConfigs
from odradek.replication.metadata.entity_names import desanitize_name, sanitize_name
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError
from odradek.server.telemetry.properties import Subscription, SubscriptionProperties, normalize, parse_subscription

logger = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS: Final = 500
"""All of them are compared with each client after each change."""

_PREFIX: Final = f"{CLIENT_METRICS}/"


async def adopt_subscriptions(
    store: MetadataStore, found: Mapping[str, Configs], now_ms: Callable[[], int]
) -> None:
    """Add the subscriptions of Apache Kafka that the store lacks. Raises MetadataStoreError."""
    for name, configs in found.items():
        try:
            parse_subscription(name, configs)
        except KafkaError as error:
            logger.error(
                "a subscription of client metrics is not adopted name=%s error=%s", shorten(name), error.message
            )
            continue
        adopted = normalize(configs)
        await change_entity(
            store,
            f"{_PREFIX}{sanitize_name(name)}",
            lambda before, adopted=adopted: {**adopted, **before},  # type: ignore[misc]
            now_ms,
            znodes.CLIENT_METRICS_CHANGES,
        )


class Subscriptions:
    """The subscriptions in the metadata store, and their changes by this broker (`resources.ClientMetricsConfigs`).

    declared: the properties of a subscription, by name
    parsed: the subscriptions by name
    version: increases with each change
    """

    declared: Mapping[str, Property[Any]] = SubscriptionProperties.declared()

    def __init__(self, store: MetadataStore, entities: EntityConfigs, now_ms: Callable[[], int]) -> None:
        self.parsed: dict[str, Subscription] = {}
        self.version = 0
        self._configs: dict[str, Configs] = {}
        self._store = store
        self._entities = entities
        self._now_ms = now_ms
        entities.listeners.append(self._update)
        self._update(entities.configs)

    def list_names(self) -> Sequence[str]:
        """Return the names of all subscriptions."""
        return sorted(self.parsed)

    def find(self, name: str) -> Configs:
        """Return the configuration of a subscription; empty if there is none of this name."""
        return self._configs.get(name, {})

    def check(self, name: str, configs: Mapping[str, str]) -> None:
        """Raise KafkaError unless a subscription may have this name and configuration."""
        parse_subscription(name, configs)
        if configs and name not in self.parsed and len(self.parsed) >= MAX_SUBSCRIPTIONS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"there may be at most {MAX_SUBSCRIPTIONS} subscriptions of client metrics"
            )

    async def put(self, name: str, configs: Mapping[str, str]) -> None:
        """Write and publish a valid configuration; an empty one removes the subscription. Raises KafkaError."""
        path, stored = f"{_PREFIX}{sanitize_name(name)}", normalize(configs)
        try:
            await change_entity(
                self._store, path, lambda before: stored, self._now_ms, znodes.CLIENT_METRICS_CHANGES
            )
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error
        self._entities.put(path, stored)

    def _update(self, changed: Mapping[str, Configs]) -> None:
        for path, configs in changed.items():
            name = desanitize_name(path.removeprefix(_PREFIX))
            self._configs.pop(name, None)
            self.parsed.pop(name, None)
            if not configs:
                continue
            try:
                self.parsed[name] = parse_subscription(name, configs)
            except KafkaError as error:
                logger.error(
                    "a subscription of client metrics is ignored; replace or delete it name=%s error=%s",
                    shorten(name), error.message,
                )  # fmt: skip
            else:
                self._configs[name] = configs
        self.version += 1
