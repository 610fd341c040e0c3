"""Loading of a BrokerConfig from a configuration file and overrides, with warnings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.log.config import CLUSTER_ONLY
from odradek.properties import PropertyError, nearest
from odradek.replication.metadata.broker_configs import listener_base
from odradek.server.config.broker import BrokerConfig, is_listener_property, parse_listener_property
from odradek.server.config.properties.sasl import SASL_PROTOCOLS
from odradek.server.config.properties_file import read_properties
from odradek.server.security.tls.settings import TLS_PROTOCOLS

# Prefixes of Kafka's properties for components that this broker lacks. They are accepted, so that a file for Kafka can
# be used unchanged, but not declared.
ACCEPTED_PREFIXES = (
    "config.providers", "controller.performance.", "controller.quorum.",
    "follower.fetch.last.tiered.", "group.share.", "group.streams.", "internal.metadata.", "kafka.metrics.",
    "listener.name.", "remote.", "replication.quota.", "sasl.", "server.max.startup.",
    "share.", "unstable.",
    "zookeeper.metadata.migration.",
)  # fmt: skip

JAAS: Final = "sasl.jaas.config"
_JAVA_PREFIXES = ("ssl.keymanager.", "ssl.protocol", "ssl.provider", "ssl.secure.random.", "ssl.trustmanager.")
"""Properties of Java's TLS, which may have a listener's prefix."""

_MISSING_COMPONENT = "this broker lacks the component"


class LoadedConfig(NamedTuple):
    """A valid configuration, and warnings."""

    config: BrokerConfig
    warnings: list[str]


OWN_LISTENERS: Final = "PLAINTEXT://127.0.0.1:9092"
OWN_LOG_DIRS: Final = "./data"


_UNKNOWN: Final = "unknown property "


class InvalidConfigError(ValueError):
    """Several errors in a configuration; `str()` has one line for each."""

    def __init__(self, errors: Sequence[ValueError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors


def load_config(path: str | None, overrides: Iterable[str] = (), *, kafka_opts: str = "") -> LoadedConfig:
    """Read a .properties file, if any, and apply `name=value` overrides. `kafka_opts`: see the module of that name.

    Without properties for them, the broker listens on OWN_LISTENERS and stores its data in OWN_LOG_DIRS: Kafka's
    defaults are all interfaces, without security, and a directory that a restart of the machine may empty.

    Raises OSError if the file cannot be read, ValueError with one line for each error in the configuration.
    """
    values: dict[str, str] = {}
    if path is not None:
        with open(path, "rb") as file:
            values.update(read_properties(file.read()))
    errors = []
    for override in overrides:
        name, equals, value = override.partition("=")
        if equals and name.strip():
            values[name.strip()] = value
        else:
            errors.append(ValueError(f"--override {override} is not name=value"))
    _raise_all(errors)
    if not values.keys() & {"listeners", "advertised.listeners"}:
        values["listeners"] = OWN_LISTENERS
    if not values.keys() & {"log.dirs", "log.dir"}:
        values["log.dirs"] = OWN_LOG_DIRS
    if kafka_opts and values.get("zookeeper.connect"):
        _add_zookeeper_login(values, kafka_opts)
    return parse_config(values)


def _add_zookeeper_login(values: dict[str, str], kafka_opts: str) -> None:
    # Imported here because brokers of Kafka's services only have this variable.
    from odradek.server.config.kafka_opts import JAAS_PROPERTY, find_zookeeper_login

    if JAAS_PROPERTY not in values:
        login = find_zookeeper_login(kafka_opts)
        if login is not None:
            values[JAAS_PROPERTY] = login


def parse_config(values: Mapping[str, str]) -> LoadedConfig:
    """Return a configuration of texts by name; unknown names are ignored with a warning.

    Raises PropertyError, or InvalidConfigError if several properties are wrong.
    """
    declared = BrokerConfig.declared()
    known: dict[str, str] = {}
    without_effect: dict[str, list[str]] = {}
    warnings: list[str] = []
    for name, text in values.items():
        prop = declared.get(name)
        if prop is None and is_listener_property(name):
            known[name] = text
            continue
        if prop is None:
            if name.startswith(ACCEPTED_PREFIXES) and not _may_be_misspelt(name):
                without_effect.setdefault(_MISSING_COMPONENT, []).append(name)
            else:
                like = nearest(listener_base(name) or name, declared)
                hint = f", did you mean {like}?" if like else ""
                warnings.append(f"{_UNKNOWN}{name} is ignored{hint}")
            continue
        known[name] = text
        if prop.no_effect:
            without_effect.setdefault(prop.no_effect, []).append(name)
    for name in values:
        if name == JAAS or listener_base(name) == JAAS:
            known.pop(name, None)
            warnings.append(f"{name} is ignored: its name must be listener.name.<listener>.<mechanism>.{JAAS}")
    if known.get("zookeeper.connect"):
        without_effect.pop(CLUSTER_ONLY, None)
    for reason, names in sorted(without_effect.items()):
        warnings.append(f"properties without effect, because {reason}: {', '.join(sorted(names))}")
    try:
        config = _validate(known)
    except ValueError as error:
        # A property that is missing because its name is misspelt may be the cause.
        unknown = [ValueError(warning) for warning in warnings if warning.startswith(_UNKNOWN)]
        if not unknown:
            raise
        found = error.errors if isinstance(error, InvalidConfigError) else [error]
        raise InvalidConfigError([*found, *unknown]) from None
    return LoadedConfig(config, [*warnings, *_find_ignored_client_auth(config)])


def _find_ignored_client_auth(config: BrokerConfig) -> Iterator[str]:
    """Iterate over warnings about listeners with SASL that do not have the property `ssl.client.auth` of the others."""
    name = "ssl.client.auth"
    for listener in config.endpoints:
        has_own = (listener.name, name) in config.listener_properties
        if listener.protocol == "SASL_SSL" and not has_own and config.value(name) != "none":
            prefixed = f"listener.name.{listener.name.lower()}.{name}"
            yield f"{name} has no effect on {listener.name}, because it has SASL_SSL; {prefixed} has"


def _may_be_misspelt(name: str) -> bool:
    """Return whether a listener's property of TLS is unknown: it may be one that protects the listener."""
    base_name = listener_base(name) or ""
    return base_name.startswith("ssl.") and not base_name.startswith(_JAVA_PREFIXES)


def _validate(values: Mapping[str, str]) -> BrokerConfig:
    """Return a valid configuration. Contradictions are checked once all single values are valid."""
    declared = BrokerConfig.declared()
    errors: list[ValueError] = []
    valid: dict[str, str] = {}
    for name, text in values.items():
        try:
            if is_listener_property(name):
                parse_listener_property(name, text)
            else:
                declared[name].parse(text)
        except PropertyError as error:
            errors.append(error)
        else:
            valid[name] = text
    config = BrokerConfig()
    try:
        config = BrokerConfig(valid)
    except PropertyError as error:
        errors.append(error)
    _raise_all(
        errors
        or list(config.find_contradictions())
        or [*_find_tls_errors(config), *_find_sasl_errors(config)]
    )
    return config


def _find_tls_errors(config: BrokerConfig) -> Iterator[PropertyError]:
    """Iterate over errors in the key stores and trust stores of listeners and of ZooKeeper. Reads their files."""
    secured = [listener for listener in config.endpoints if listener.protocol in TLS_PROTOCOLS]
    zookeeper = config.zookeeper_tls_settings if config.zookeeper_connect else None
    if not secured and zookeeper is None:
        return
    # Imported here because most brokers need neither.
    from odradek.server.security.tls.contexts import make_client_context, make_principal_mapper, make_server_context

    for listener in secured:
        settings = config.tls_settings(listener.name)
        try:
            make_server_context(settings)
            make_principal_mapper(settings)
            if config.zookeeper_connect and listener.name == config.inter_broker_name:
                make_client_context(settings)
        except PropertyError as error:
            yield error
    if zookeeper is not None:
        try:
            make_client_context(zookeeper)
        except PropertyError as error:
            yield error


def _find_sasl_errors(config: BrokerConfig) -> Iterator[PropertyError]:
    """Iterate over errors in the mechanisms of listeners."""
    with_sasl = [listener for listener in config.endpoints if listener.protocol in SASL_PROTOCOLS]
    if not with_sasl:
        return
    # Imported here because most brokers need neither.
    from odradek.server.security.sasl.inter_broker import check_inter_broker_login
    from odradek.server.security.sasl.mechanisms import check_mechanisms
    from odradek.server.security.sasl.settings import make_sasl_settings

    for listener in with_sasl:
        try:
            check_mechanisms(make_sasl_settings(config, listener.name))
            if config.zookeeper_connect and listener.name == config.inter_broker_name:
                check_inter_broker_login(config)
        except PropertyError as error:
            yield error


def _raise_all(errors: Sequence[ValueError]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise InvalidConfigError(errors)
