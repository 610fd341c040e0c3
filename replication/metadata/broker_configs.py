"""Which configuration is in force: static values, dynamic cluster-wide and per-broker ones, and those of topics.

A broker's value comes from the first that has it: its own dynamic configuration, the dynamic cluster-wide default,
the properties it was started with, the declared default (KIP-226). A topic's comes from its own configuration,
else from the broker property that is its synonym.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from odradek.log.config import LogConfig
from odradek.properties import PropertyError, PropertySet, UpdateMode
from odradek.replication.metadata.image import ClusterMetadata, MetadataDelta

logger = logging.getLogger(__name__)

LISTENER_PREFIX = "listener.name."
FLUSH_DEFAULT = "log.flush.scheduler.interval.ms"

ConfigChangeListener = Callable[[PropertySet, PropertySet], None]


def _synonym_groups() -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for prop in LogConfig.declared().values():
        names = tuple(synonym.name for synonym in prop.synonyms)
        if len(names) > 1:
            groups.update((name, names) for name in names if name != FLUSH_DEFAULT)
    return groups


SYNONYM_GROUPS = _synonym_groups()
"""Broker properties that say the same in other units, such as log.retention.ms and .hours; the first has precedence."""


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The broker properties whose value may stand for that of `name`, in their order of precedence."""
    group = SYNONYM_GROUPS.get(name)
    if group is not None:
        return group
    base = listener_base(name)
    return (name,) if base is None else (name, base)


def listener_base(name: str) -> str | None:
    """The property that a `listener.name.<listener>.<property>` overrides for one listener."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, dot, base = name[len(LISTENER_PREFIX) :].partition(".")
    return base if dot else None


def log_defaults(broker: PropertySet) -> LogConfig:
    """What holds for topics without a configuration of their own. Raises PropertyError."""
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
    """The configuration in force on one broker, kept up to date with the metadata image.

    image: the metadata that the broker serves
    static: the properties the broker was started with
    current: those in force; replaced, never changed
    topic_defaults: what holds for topics without a configuration of their own
    listeners: called with the old and the new `current` when a dynamic configuration has changed it
    """

    __slots__ = (
        "_broker_id", "_default", "_own", "_topics", "current", "image", "listeners", "static", "topic_defaults",
    )  # fmt: skip

    def __init__(self, broker_id: int, static: PropertySet, image: ClusterMetadata) -> None:
        self._broker_id = broker_id
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
        """The dynamic cluster-wide default, as far as it is valid."""
        return self._default

    def dynamic_broker(self) -> Mapping[str, str]:
        """This broker's own dynamic configuration, as far as it is valid."""
        return self._own

    def topic(self, name: str) -> LogConfig:
        """The configuration in force for a topic; the same object while nothing changes."""
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
            kept = {}
            for key, value in explicit.items():
                try:
                    LogConfig({key: value})
                except PropertyError as error:
                    logger.error("ignoring stored configuration topic=%s: %s", name, error)
                else:
                    kept[key] = value
            return LogConfig(kept, base=self.topic_defaults)

    def resolve(self, default: Mapping[str, str], own: Mapping[str, str]) -> PropertySet:
        """The set in force if the dynamic configurations were these. Raises PropertyError."""
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

    def _valid(self, configs: Mapping[str, str], *, is_default: bool) -> Mapping[str, str]:
        declared = type(self.static).declared()
        kept = {}
        for name, value in configs.items():
            prop = declared.get(name)
            if prop is not None:
                per_broker = prop.update_mode is UpdateMode.PER_BROKER
                if prop.update_mode is UpdateMode.READ_ONLY or (per_broker and is_default):
                    logger.error("ignoring stored broker configuration name=%s: not dynamic here", name)
                    continue
                try:
                    prop.parse(value)
                except PropertyError as error:
                    logger.error("ignoring stored broker configuration: %s", error)
                    continue
            kept[name] = value
        return kept

    def _on_metadata(self, delta: MetadataDelta) -> None:
        self._forget(delta.topic_configs)
        self._forget(topic.name for topic in delta.deleted_topics)
        if delta.broker_configs:
            self._refresh()

    def _forget(self, topics: Iterable[str]) -> None:
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
