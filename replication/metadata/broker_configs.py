"""The effective configuration: static, dynamic cluster-wide, dynamic per-broker, and topic configurations.

The value of a broker property is the first that is set in: the broker's dynamic configuration, the dynamic cluster-wide
default, the static properties, the declared default (KIP-226). The value of a topic property is that of the topic's
configuration, otherwise that of the synonymous broker property.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from odradek.log.config import LogConfig
from odradek.properties import Property, PropertyError, PropertySet, UpdateMode
from odradek.replication.metadata.image import ClusterMetadata, MetadataDelta

logger = logging.getLogger(__name__)

LISTENER_PREFIX = "listener.name."
FLUSH_DEFAULT = "log.flush.scheduler.interval.ms"

_STORE_PREFIXES = ("ssl.keystore.", "ssl.key.", "ssl.truststore.")
_LISTENER_PROPERTIES = (
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.kerberos.principal.to.local.rules",
    "sasl.kerberos.service.name",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
)
"""With the properties of key and trust stores: those that are dynamic for one listener only."""

_MECHANISM_SYNONYMS = ("connections.max.reauth.ms", "sasl.jaas.config", "sasl.server.callback.handler.class")
"""Properties of a mechanism of a listener whose description has the one without prefixes as a synonym."""


class PasswordCodec(Protocol):
    """Encrypts the passwords of dynamic configurations in the store."""

    def encode(self, password: str, /) -> str:
        """Return the encrypted password. Raises PropertyError if that is not configured."""

    def decode(self, encoded: str, /) -> str:
        """Return the password. Raises ValueError with the reason."""

    def is_outdated(self, encoded: str, /) -> bool:
        """Return whether a password that `decode` has returned should be encrypted again."""


ConfigChangeListener = Callable[[PropertySet, PropertySet], None]


def _synonym_groups() -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for prop in LogConfig.declared().values():
        names = tuple(synonym.name for synonym in prop.synonyms)
        if len(names) > 1:
            groups.update((name, names) for name in names if name != FLUSH_DEFAULT)
    return groups


SYNONYM_GROUPS = _synonym_groups()
"""Broker properties with the same meaning and different units, such as log.retention.ms and .hours, by precedence."""


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Return the broker properties that may provide the value of `name`, in order of precedence."""
    group = SYNONYM_GROUPS.get(name)
    if group is not None:
        return group
    base = listener_base(name)
    if base is None:
        return (name,)
    return name, next((synonym for synonym in _MECHANISM_SYNONYMS if base.endswith(f".{synonym}")), base)


def listener_base(name: str) -> str | None:
    """Return the property that `listener.name.<listener>.<property>` overrides; None for other names."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, dot, base = name[len(LISTENER_PREFIX) :].partition(".")
    return base if dot else None


def find_property(declared: Mapping[str, Property[Any]], name: str) -> Property[Any] | None:
    """Return the declaration of a property, which may be that of a listener or of a mechanism of a listener."""
    base = listener_base(name) or ""
    return declared.get(name) or declared.get(base) or declared.get(base.partition(".")[2])


def requires_listener(name: str) -> bool:
    """Return whether a name without listener is that of a property that is dynamic for one listener only."""
    return name.startswith(_STORE_PREFIXES) or name in _LISTENER_PROPERTIES


def log_defaults(broker: PropertySet) -> LogConfig:
    """Return the configuration of topics without explicit configuration. Raises PropertyError."""
    declared = type(broker).declared()
    values: dict[str, str] = {}
    for prop in LogConfig.declared().values():
        for synonym in prop.synonyms:
            if synonym.name not in declared:
                continue
            if synonym.factor == 1:
                text = broker.text(synonym.name)
            else:
                number = broker.value(synonym.name)
                text = None if number is None else str(-1 if number < 0 else number * synonym.factor)
            if text is not None:
                values[prop.name] = text
                break
    if int(values.get("retention.ms", "0")) < 0:
        values["retention.ms"] = "-1"
    return LogConfig(values)


class BrokerConfigs:
    """The effective configuration of one broker, updated from the metadata image.

    image: the broker's metadata image
    static: the properties with which the broker was started
    current: the effective properties; replaced, never changed
    topic_defaults: the configuration of topics without explicit configuration
    listeners: called with the old and the new `current` when a dynamic configuration changes it

    Without `passwords` the passwords in dynamic configurations are not encrypted.
    """

    __slots__ = (
        "_broker_id", "_default", "_own", "_password_names", "_passwords", "_topics", "current", "image", "listeners",
        "static", "topic_defaults",
    )  # fmt: skip

    def __init__(
        self, broker_id: int, static: PropertySet, image: ClusterMetadata, passwords: PasswordCodec | None = None
    ) -> None:
        self._broker_id = broker_id
        self._passwords = passwords
        self._password_names = tuple(
            name
            for name, prop in type(static).declared().items()
            if prop.sensitive and prop.update_mode is UpdateMode.PER_BROKER
        )
        self.image = image
        self._topics: dict[str, LogConfig] = {}
        self._default: Mapping[str, str] = {}
        self._own: Mapping[str, str] = {}
        self.static = static
        self.current = static
        self.topic_defaults = log_defaults(static)
        self.listeners: list[ConfigChangeListener] = []
        image.listeners.append(self._on_metadata)

    def dynamic_default(self) -> Mapping[str, str]:
        """Return the valid entries of the dynamic cluster-wide default."""
        return self._default

    def dynamic_broker(self) -> Mapping[str, str]:
        """Return the valid entries of this broker's dynamic configuration."""
        return self._own

    def topic(self, name: str) -> LogConfig:
        """Return the effective configuration of a topic; the same object until it changes."""
        config = self._topics.get(name)
        if config is None:
            config = self._topics[name] = self._topic(name)
        return config

    def _topic(self, name: str) -> LogConfig:
        explicit = self.image.topic_configs.get(name)
        if not explicit:
            return self.topic_defaults
        try:
            return LogConfig(explicit, base=self.topic_defaults)
        except PropertyError:
            valid = {}
            for key, value in explicit.items():
                try:
                    LogConfig({key: value})
                except PropertyError as error:
                    logger.error("ignoring stored configuration topic=%s: %s", name, error)
                else:
                    valid[key] = value
            return LogConfig(valid, base=self.topic_defaults)

    def resolve(self, default: Mapping[str, str], own: Mapping[str, str]) -> PropertySet:
        """Return the effective properties for these dynamic configurations. Raises PropertyError."""
        changes: dict[str, str | None] = {}
        for layer in (default, own):
            for name, value in layer.items():
                if not self.static.takes(name):
                    continue
                for synonym in SYNONYM_GROUPS.get(name, ()):
                    changes[synonym] = None
                changes[name] = value
        resolved = self.static.replace(changes) if changes else self.static
        log_defaults(resolved).validate()
        return resolved

    def decode(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return a stored configuration with decrypted passwords, without those that cannot be decrypted."""
        configs = dict(stored)
        for name in filter(self._is_password, stored):
            try:
                configs[name] = self._passwords.decode(stored[name]) if self._passwords else stored[name]
            except ValueError as error:
                logger.error("ignoring stored password name=%s: %s", name, error)
                del configs[name]
        return configs

    def encode(self, configs: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
        """Return a configuration with encrypted passwords. Those that have not changed are as in `stored`.

        Passwords in `stored` that were encrypted with an old secret are encrypted again. Raises PropertyError.
        """
        passwords = self._passwords
        if passwords is None:
            return dict(configs)
        encoded, present = dict(configs), self.decode(stored)
        for name in filter(self._is_password, configs):
            is_kept = present.get(name) == configs[name] and not passwords.is_outdated(stored[name])
            encoded[name] = stored[name] if is_kept else passwords.encode(configs[name])
        return encoded

    def adopt(self, plain: Mapping[str, str]) -> dict[str, str]:
        """Return a configuration of Apache Kafka, whose passwords are not encrypted, as it is stored here.

        Passwords that cannot be encrypted, or are not dynamic here, are not in it.
        """
        fixed = set(filter(self._is_fixed_secret, plain))
        if fixed:
            logger.error(
                "secrets of Apache Kafka are not adopted, because they are not dynamic; set them in the properties of "
                "the broker names=%s", ",".join(sorted(fixed)),
            )  # fmt: skip
        adopted = {name: value for name, value in plain.items() if name not in fixed}
        try:
            return self.encode(adopted, {})
        except PropertyError as error:
            names = sorted(filter(self._is_password, adopted))
            logger.error("passwords of Apache Kafka are not adopted names=%s: %s", ",".join(names), error)
            return {name: value for name, value in adopted.items() if not self._is_password(name)}

    def _is_fixed_secret(self, name: str) -> bool:
        prop = find_property(type(self.static).declared(), name)
        return prop is not None and prop.sensitive and prop.update_mode is UpdateMode.READ_ONLY

    def _is_password(self, name: str) -> bool:
        return name.endswith(self._password_names)

    def _valid(self, configs: Mapping[str, str], *, is_default: bool) -> Mapping[str, str]:
        declared = type(self.static).declared()
        valid = {}
        for name, value in self.decode(configs).items():
            base_name = listener_base(name)
            prop = find_property(declared, name)
            if prop is not None:
                per_broker = prop.update_mode is UpdateMode.PER_BROKER
                read_only = prop.update_mode is UpdateMode.READ_ONLY or requires_listener(name)
                if (read_only and base_name is None) or (per_broker and is_default):
                    logger.error("ignoring stored broker configuration name=%s: not dynamic at this level", name)
                    continue
                try:
                    prop.parse(value)
                except PropertyError as error:
                    logger.error("ignoring stored broker configuration: %s", error)
                    continue
            valid[name] = value
        return valid

    def _on_metadata(self, delta: MetadataDelta) -> None:
        self._invalidate(delta.topic_configs)
        self._invalidate(topic.name for topic in delta.deleted_topics)
        if delta.broker_configs:
            self._refresh()

    def _invalidate(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._topics.pop(topic, None)

    def _refresh(self) -> None:
        stored = self.image.broker_configs
        self._default = self._valid(stored.get(None, {}), is_default=True)
        self._own = self._valid(stored.get(self._broker_id, {}), is_default=False)
        previous = self.current
        try:
            current = self.resolve(self._default, self._own)
            defaults = log_defaults(current)
        except PropertyError as error:
            logger.error("ignoring stored broker configuration: %s", error)
            return
        if current.__dict__ == previous.__dict__ and current.explicit == previous.explicit:
            return
        self.current = current
        self.topic_defaults = defaults
        self._topics.clear()
        for listener in list(self.listeners):
            listener(previous, current)
