"""All broker properties as one set, derived values, and contradictions between properties."""

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, Self

from odradek.log.config import LogConfig
from odradek.properties import PropertyError
from odradek.replication.metadata.broker_configs import LISTENER_PREFIX, listener_base
from odradek.server.config.listeners import (
    SECURITY_PROTOCOLS,
    Listener,
    parse_http_listener,
    parse_listeners,
    parse_protocol_map,
    refuse_wildcards,
    resolve_advertised,
)
from odradek.server.config.properties.accepted import AcceptedProperties
from odradek.server.config.properties.authorization import AuthorizationProperties, parse_super_users
from odradek.server.config.properties.cluster import RACK_AWARE_SELECTOR, ClusterProperties
from odradek.server.config.properties.delegation_tokens import DelegationTokenProperties
from odradek.server.config.properties.event_log import EventLogProperties
from odradek.server.config.properties.groups import GroupProperties
from odradek.server.config.properties.network import NetworkProperties
from odradek.server.config.properties.oauth_tokens import OAuthTokenProperties
from odradek.server.config.properties.passwords import PasswordProperties
from odradek.server.config.properties.sasl import (
    KERBEROS_PROPERTIES,
    LOGIN_MODULES,
    LOGIN_PROPERTIES,
    MECHANISM_PROPERTIES,
    OAUTH_PROPERTIES,
    SASL_PROTOCOLS,
    SaslProperties,
)
from odradek.server.config.properties.security import SecurityProperties
from odradek.server.config.properties.storage import StorageProperties
from odradek.server.config.properties.telemetry import TelemetryProperties
from odradek.server.config.properties.transactions import TransactionProperties
from odradek.server.config.properties.zookeeper import ZooKeeperProperties, parse_connect
from odradek.server.security.tls.settings import TLS_PROTOCOLS, TlsSettings

LISTENER_LIMITS = ("max.connections", "max.connection.creation.rate")

LISTENER_PROPERTIES = (
    *LISTENER_LIMITS,
    *SecurityProperties.declared(),
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.server.max.receive.size",
    *KERBEROS_PROPERTIES,
    *LOGIN_PROPERTIES,
    *OAUTH_PROPERTIES,
)
"""Properties that can be set per listener, as `listener.name.<listener>.<property>`."""

_MECHANISM_PREFIXES = tuple(f"{mechanism.lower()}." for mechanism in LOGIN_MODULES)

THEMES = (
    NetworkProperties,
    SecurityProperties,
    AuthorizationProperties,
    SaslProperties,
    OAuthTokenProperties,
    PasswordProperties,
    DelegationTokenProperties,
    EventLogProperties,
    TelemetryProperties,
    StorageProperties,
    ClusterProperties,
    GroupProperties,
    TransactionProperties,
    ZooKeeperProperties,
    AcceptedProperties,
)

# (a, b) with a >= b: pairs of properties whose order Kafka validates at start.
_ORDERED = (
    ("group.max.session.timeout.ms", "group.min.session.timeout.ms"),
    ("group.consumer.max.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms"),
    ("group.consumer.max.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.max.session.timeout.ms", "group.consumer.min.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.min.session.timeout.ms"),
    ("group.consumer.max.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.max.assignment.interval.ms", "group.consumer.min.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.min.assignment.interval.ms"),
    ("group.consumer.max.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("replica.socket.timeout.ms", "replica.fetch.wait.max.ms"),
    ("replica.lag.time.max.ms", "replica.fetch.wait.max.ms"),
    ("log.cleaner.max.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
)

# Numbers of threads, which may change by a factor of two at most (KIP-226).
_THREADS = (
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)

# Counts of internal topics whose defaults are meant for three brokers or more.
_CAPPED_BY_BROKERS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)


def is_listener_property(name: str) -> bool:
    """Return whether a name sets one of LISTENER_PROPERTIES for a listener, or a property of one of its mechanisms."""
    base_name = listener_base(name)
    return base_name is not None and (
        base_name in LISTENER_PROPERTIES or _mechanism_base(base_name) in MECHANISM_PROPERTIES
    )


def _mechanism_base(base_name: str) -> str:
    """Return the property that `<mechanism>.<property>` overrides; the same name for other names."""
    return base_name.partition(".")[2] if base_name.startswith(_MECHANISM_PREFIXES) else base_name


def parse_listener_property(name: str, text: str) -> tuple[tuple[str, str], Any]:
    """Parse a listener property; return ((listener, property), value). Raises PropertyError."""
    listener, base_name = name.removeprefix(LISTENER_PREFIX).split(".", 1)
    try:
        value = BrokerConfig.declared()[_mechanism_base(base_name)].parse(text)
    except PropertyError as error:
        raise PropertyError(name, error.value, error.allowed) from None
    if base_name in LISTENER_LIMITS and value < 1:
        raise PropertyError(name, text, "must be at least 1")
    return (listener.upper(), base_name), value


class BrokerConfig(
    NetworkProperties,
    SecurityProperties,
    AuthorizationProperties,
    SaslProperties,
    OAuthTokenProperties,
    PasswordProperties,
    DelegationTokenProperties,
    EventLogProperties,
    TelemetryProperties,
    StorageProperties,
    ClusterProperties,
    GroupProperties,
    TransactionProperties,
    ZooKeeperProperties,
    AcceptedProperties,
):
    """All properties of a broker.

    Derived attributes:
        node_id: `node.id`, or `broker.id` if only that is set; -1 if the id is to be generated in ZooKeeper (see
            `with_generated_id`)
        data_dirs: `log.dirs`, or `log.dir` if that is not set
        endpoints: listeners, without those of KRaft controllers
        advertised_endpoints: advertised listeners before ports are bound (see `advertise`)
        inter_broker_name: name of the listener for connections between brokers
        inter_broker_protocol: its security protocol
        topic_defaults: configuration of a topic without own properties; the base of its LogConfig
        listener_properties: by listener and property, the `listener.name.<listener>.<property>` of LISTENER_PROPERTIES,
            and of mechanisms, whose properties begin with `<mechanism>.`
        connections_of_hosts: `max.connections.per.ip.overrides` by host
    """

    data_dirs: tuple[str, ...]
    endpoints: tuple[Listener, ...]
    advertised_endpoints: tuple[Listener, ...]
    inter_broker_name: str
    inter_broker_protocol: str
    topic_defaults: LogConfig
    listener_properties: dict[tuple[str, str], Any]
    connections_of_hosts: dict[str, int]
    metrics_endpoint: Listener | None
    is_id_generated = False

    def __init__(self, values: Mapping[str, str] | None = None, *, base: Self | None = None) -> None:
        texts = dict(values or {})
        of_listeners = {name: texts.pop(name) for name in list(texts) if is_listener_property(name)}
        self.listener_properties = dict(parse_listener_property(name, text) for name, text in of_listeners.items())
        super().__init__(texts, base=base)
        self.explicit = {**self.explicit, **of_listeners}

    @classmethod
    def takes(cls, name: str) -> bool:
        return super().takes(name) or is_listener_property(name)

    def replace(self, changes: Mapping[str, str | None]) -> Self:
        replaced = super().replace(changes)
        return replaced.with_generated_id(self.node_id) if self.is_id_generated else replaced

    def with_generated_id(self, broker_id: int) -> Self:
        """Return this configuration with an id that was generated in ZooKeeper."""
        changed = copy(self)
        changed.__dict__["node_id"] = broker_id
        changed.__dict__["is_id_generated"] = True
        return changed

    def derive(self) -> None:
        is_member = self.zookeeper_connect is not None
        if self.base is None and "node.id" not in self.explicit and (is_member or self.broker_id >= 0):
            self.__dict__["node_id"] = self.broker_id
        self.data_dirs = self.log_dir if self.log_dirs is None else self.log_dirs
        self._derive_listeners()
        self.topic_defaults = LogConfig(self.convert_topic_values(self.explicit))
        self.connections_of_hosts = self._parse_connections_of_hosts()
        self.metrics_endpoint = parse_http_listener("metrics.listener", self.metrics_listener)

    def _parse_connections_of_hosts(self) -> dict[str, int]:
        name, text = "max.connections.per.ip.overrides", self.max_connections_per_ip_overrides
        connections: dict[str, int] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            host, colon, digits = entry.rpartition(":")
            if not colon or not host.strip() or not (digits.isascii() and digits.isdigit()):
                raise PropertyError(name, text, f"{entry} is not host:count")
            connections[host.strip().strip("[]")] = int(digits)
        return connections

    def _derive_listeners(self) -> None:
        property_name = "listener.security.protocol.map"
        protocols = parse_protocol_map(property_name, self.listener_security_protocol_map)
        if property_name not in self.explicit:
            for name in self.controller_listener_names:
                protocols.setdefault(name.upper(), "PLAINTEXT")
        controllers = {name.upper() for name in self.controller_listener_names}
        bound = parse_listeners("listeners", self.listeners, protocols, distinct_ports=True)
        self.endpoints = tuple(listener for listener in bound if listener.name not in controllers)
        advertised = bound
        if self.advertised_listeners is not None:
            advertised = parse_listeners(
                "advertised.listeners", self.advertised_listeners, protocols, distinct_ports=False
            )
        self.advertised_endpoints = tuple(one for one in advertised if one.name not in controllers)
        given = self.inter_broker_listener_name
        self.inter_broker_name = self.security_inter_broker_protocol if given is None else given.upper()
        self.inter_broker_protocol = protocols.get(self.inter_broker_name, "PLAINTEXT")

    @staticmethod
    def convert_topic_values(broker_values: Mapping[str, str]) -> dict[str, str]:
        """Return the topic properties that broker properties set; the first of several synonyms takes precedence."""
        values: dict[str, str] = {}
        for prop in LogConfig.declared().values():
            for name, factor in prop.synonyms:
                text = broker_values.get(name)
                if text is None:
                    continue
                values[prop.name] = text if factor == 1 else str(int(text) * factor)
                if prop.name == "retention.ms" and int(values[prop.name]) < 0:
                    values[prop.name] = "-1"
                break
        return values

    @property
    def selects_replicas_by_rack(self) -> bool:
        """True if a leader sends consumers to followers in their racks (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    def tls_settings(self, listener_name: str) -> TlsSettings:
        """Return the TLS properties of a listener: its own, and for all others those without a prefix."""
        own = frozenset(name for listener, name in self.listener_properties if listener == listener_name)
        values = {
            prop.attribute.removeprefix("ssl_"): (
                self.listener_properties[listener_name, name] if name in own else self.value(name)
            )
            for name, prop in SecurityProperties.declared().items()
        }
        # Clients authenticate themselves with SASL. Certificates are required by the listener's own property only.
        if "ssl.client.auth" not in own and self._find_protocol(listener_name) == "SASL_SSL":
            values["client_auth"] = "none"
        return TlsSettings(prefix=f"{LISTENER_PREFIX}{listener_name.lower()}.", own=own, **values)

    def _find_protocol(self, listener_name: str) -> str | None:
        return next((one.protocol for one in self.endpoints if one.name == listener_name), None)

    def listener_value(self, listener_name: str, name: str) -> Any:
        """Return the value of one of LISTENER_PROPERTIES: the listener's own, or the one without a prefix."""
        key = listener_name, name
        return self.listener_properties[key] if key in self.listener_properties else self.value(name)

    def listener_property_name(self, listener_name: str, name: str) -> str:
        """Return the name of the property that `listener_value` returns, for errors."""
        has_own = (listener_name, name) in self.listener_properties
        return f"{LISTENER_PREFIX}{listener_name.lower()}.{name}" if has_own else name

    def mechanism_value(self, listener_name: str, mechanism: str, name: str) -> Any:
        """Return the value of one of MECHANISM_PROPERTIES: the mechanism's own, or that of `listener_value`."""
        key = listener_name, f"{mechanism.lower()}.{name}"
        if key in self.listener_properties:
            return self.listener_properties[key]
        return self.listener_value(listener_name, name)

    def mechanism_property_name(self, listener_name: str, mechanism: str, name: str) -> str:
        """Return the name of the property that `mechanism_value` returns, for errors."""
        key = listener_name, f"{mechanism.lower()}.{name}"
        if key in self.listener_properties:
            return f"{self.mechanism_prefix(listener_name, mechanism)}{name}"
        return self.listener_property_name(listener_name, name)

    @staticmethod
    def mechanism_prefix(listener_name: str, mechanism: str) -> str:
        """Return the prefix of the properties of a listener's mechanism."""
        return f"{LISTENER_PREFIX}{listener_name.lower()}.{mechanism.lower()}."

    def limit_by_brokers(self, name: str, live_brokers: int) -> int:
        """Return a count for an internal topic: the configured one, or the default limited by the number of brokers.

        So a single broker needs no configuration, and a configured count that exceeds the number of brokers fails as
        in Kafka. `name` is one of `offsets.topic.replication.factor`,
        `transaction.state.log.replication.factor`, `transaction.state.log.min.isr`.
        """
        assert name in _CAPPED_BY_BROKERS, name
        value: int = self.value(name)
        return value if name in self.explicit else max(1, min(value, live_brokers))

    def advertise(self, bound_ports: Mapping[str, int], host: str) -> tuple[Listener, ...]:
        """Return the advertised listeners, given the bound port of each listener and the name of this host."""
        return resolve_advertised(self.advertised_endpoints, bound_ports.__getitem__, host)

    def validate(self) -> None:
        for error in self.find_contradictions():
            raise error

    def find_contradictions(self) -> Iterator[PropertyError]:
        """Iterate over contradictions between valid properties, and values that this version does not support."""
        for validate in (
            self._validate_identity,
            self._validate_authorization,
            self._validate_zookeeper,
            self._validate_listeners,
            self._validate_connections,
            self._validate_log,
        ):
            try:
                validate()
            except PropertyError as error:
                yield error
        for larger, smaller in _ORDERED:
            if self.value(larger) < self.value(smaller):
                allowed = f"must be at least {smaller} ({self.text(smaller)})"
                yield PropertyError(larger, self.text(larger), allowed)
        name = "group.consumer.heartbeat.interval.ms"
        timeout_ms = self.group_consumer_session_timeout_ms
        if self.group_consumer_heartbeat_interval_ms >= timeout_ms:
            allowed = f"must be less than group.consumer.session.timeout.ms ({timeout_ms})"
            yield PropertyError(name, self.text(name), allowed)
        if 0 <= self.connections_max_idle_ms <= self.connection_failed_authentication_delay_ms:
            name = "connection.failed.authentication.delay.ms"
            allowed = f"must be less than connections.max.idle.ms ({self.connections_max_idle_ms})"
            yield PropertyError(name, self.text(name), allowed)

    def validate_change(self, current: Self) -> None:
        for name in _THREADS:
            count, before = self.value(name), current.value(name)
            if count == before:
                continue
            if count < 1:
                raise PropertyError(name, str(count), "must be at least 1")
            if count < before // 2:
                raise PropertyError(name, str(count), f"must be at least half the current value {before}")
            if count > before * 2:
                raise PropertyError(name, str(count), f"must not be more than double the current value {before}")

        for one in self.endpoints:
            if one.protocol in TLS_PROTOCOLS:
                self._validate_tls_change(current, one.name)
            if one.protocol in SASL_PROTOCOLS:
                self._validate_sasl_change(current, one.name)

    def _validate_tls_change(self, current: Self, listener_name: str) -> None:
        old = current.tls_settings(listener_name)
        new = old.with_dynamic_of(self.tls_settings(listener_name))
        if new.has_values_of(old):
            return
        # Imported here because it loads `cryptography`.
        from odradek.server.security.tls.store_changes import check_store_change

        is_inter_broker = self.zookeeper_connect is not None and listener_name == self.inter_broker_name
        check_store_change(old, new, is_inter_broker=is_inter_broker)

    def _validate_sasl_change(self, current: Self, listener_name: str) -> None:
        if self._find_sasl_properties(listener_name) == current._find_sasl_properties(listener_name):
            return
        # Imported here because most brokers need no SASL.
        from odradek.server.security.sasl.inter_broker import check_inter_broker_login
        from odradek.server.security.sasl.mechanisms import check_mechanisms
        from odradek.server.security.sasl.settings import make_sasl_settings

        check_mechanisms(make_sasl_settings(self, listener_name))
        if self.zookeeper_connect is not None and listener_name == self.inter_broker_name:
            check_inter_broker_login(self)

    def _find_sasl_properties(self, listener_name: str) -> dict[str, Any]:
        """Return the properties of a listener that are neither of TLS nor limits."""
        return {
            name: value
            for (listener, name), value in self.listener_properties.items()
            if listener == listener_name and name not in LISTENER_LIMITS and not name.startswith("ssl.")
        }

    def _validate_identity(self) -> None:
        if "broker.id" in self.explicit and self.broker_id not in (-1, self.node_id):
            raise PropertyError("broker.id", self.text("broker.id"), f"must be node.id ({self.node_id})")
        if self.process_roles and "broker" not in self.process_roles:
            raise PropertyError(
                "process.roles", ",".join(self.process_roles), "must include broker; there are no controllers"
            )

    def _validate_authorization(self) -> None:
        if self.authorizer_class_name:
            parse_super_users(self.super_users)

    def _validate_zookeeper(self) -> None:
        text = self.zookeeper_connect
        if text is None:
            return
        try:
            parse_connect(text)
        except ValueError as error:
            raise PropertyError("zookeeper.connect", text, str(error)) from None
        if self.process_roles:
            allowed = "must not be set together with zookeeper.connect"
            raise PropertyError("process.roles", ",".join(self.process_roles), allowed)
        credentials = self.zookeeper_credentials
        has_certificate = self.zookeeper_ssl_client_enable and self.zookeeper_ssl_keystore_location is not None
        if self.zookeeper_set_acl and credentials is None and not has_certificate:
            allowed = (
                "requires authentication with ZooKeeper: zookeeper.sasl.jaas.config, or zookeeper.ssl.client.enable "
                "with zookeeper.ssl.keystore.location"
            )
            raise PropertyError("zookeeper.set.acl", "true", allowed)
        name = "node.id" if "node.id" in self.explicit else "broker.id"
        if not self.broker_id_generation_enable:
            if self.node_id < 0:
                allowed = "must be set, because broker.id.generation.enable is false"
                raise PropertyError("broker.id", self.text("broker.id"), allowed)
        elif not self.is_id_generated and not -1 <= self.node_id <= self.reserved_broker_max_id:
            allowed = f"must be between -1 and reserved.broker.max.id ({self.reserved_broker_max_id})"
            raise PropertyError(name, str(self.node_id), allowed)

    def _validate_listeners(self) -> None:
        names = {listener.name for listener in self.endpoints}
        if not names:
            raise PropertyError("listeners", ",".join(self.listeners), "must name a listener for clients")
        advertised = {listener.name for listener in self.advertised_endpoints}
        if not advertised or not advertised <= names:
            text = ",".join(map(str, self.advertised_endpoints))
            raise PropertyError("advertised.listeners", text, f"must name any of: {', '.join(sorted(names))}")
        refuse_wildcards(
            "listeners" if self.advertised_listeners is None else "advertised.listeners",
            self.advertised_endpoints,
        )
        self._validate_inter_broker_listener(advertised)

    def _validate_inter_broker_listener(self, advertised: set[str]) -> None:
        name = "inter.broker.listener.name"
        given = self.inter_broker_listener_name
        if given is not None and "security.inter.broker.protocol" in self.explicit:
            raise PropertyError(name, given, "must not be set together with security.inter.broker.protocol")
        if self.inter_broker_name in advertised:
            return
        choices = f"must be one of: {', '.join(sorted(advertised))}"
        if given is not None:
            raise PropertyError(name, given, choices)
        usable = sorted(advertised.intersection(SECURITY_PROTOCOLS))
        hint = f"; set security.inter.broker.protocol={usable[0]}" if usable else f"; set {name}={min(advertised)}"
        raise PropertyError(name, None, f"{choices}, because no listener is named {self.inter_broker_name}{hint}")

    def _validate_connections(self) -> None:
        if self.max_connections_per_ip == 0 and not self.connections_of_hosts:
            name = "max.connections.per.ip"
            raise PropertyError(name, "0", "requires max.connections.per.ip.overrides with the hosts that may connect")

    def _validate_log(self) -> None:
        for name, minimum in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0)):
            value = self.value(name)
            if value is not None and value < minimum:
                raise PropertyError(name, str(value), f"must be at least {minimum}")
        for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
            if self.value(name) == 0:
                raise PropertyError(name, "0", "must be at least 1, or -1 for no limit")
        if self.log_cleaner_dedupe_buffer_size <= 1 << 20:
            name = "log.cleaner.dedupe.buffer.size"
            raise PropertyError(name, self.text(name), "must be more than 1048576")
