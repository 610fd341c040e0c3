"""Changes and lists of configurations: topics, brokers, the cluster-wide default, loggers, and client metrics.

Sources: KIP-133 (AlterConfigs), KIP-226 (dynamic broker configurations), KIP-339 (IncrementalAlterConfigs), KIP-1142
(ListConfigResources). Errors and their order as of Apache Kafka 4.3, whose broker checks a request before its
controller does. Configurations of groups are not supported; their type is unknown here.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar

from odradek.log.config import LogConfig
from odradek.properties import Kind, Property, PropertyError, PropertySet, UpdateMode
from odradek.protocol.errors import ErrorCode, KafkaError, shorten
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
)
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from odradek.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResponseConfigResource,
)
from odradek.protocol.schema import rows
from odradek.replication.controller.admin.broker_loggers import alter_loggers
from odradek.replication.controller.admin.topics import check_topic_configs
from odradek.replication.controller.configs.limits import (
    MAX_ENTRIES,
    check_total_size,
    check_value_sizes,
    too_many_entries,
)
from odradek.replication.controller.configs.resources import (
    ClientMetricsConfigs,
    Operation,
    ResourceType,
    parse_broker_id,
)
from odradek.replication.metadata.broker_configs import BrokerConfigs, find_property, requires_listener
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.topic_names import check_topic_name

logger = logging.getLogger(__name__)

_LOGGED_LENGTH = 1000
_RESOURCES_PER_PAUSE = 1000


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def configs(self) -> Sequence["_Named"]: ...


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str | None: ...


R = TypeVar("R", bound=_Resource)
T = TypeVar("T")
Changed = Callable[[R, Mapping[str, str]], dict[str, str]]
Authorize = Callable[[int, str], KafkaError | None]
"""Returns the error of a client that may not change the configuration of a resource, given by type and name."""


def allow_all(resource_type: int, name: str) -> None:
    """Authorize every client."""
    return


class ConfigWriter(Protocol):
    """Writes configurations to the store. Raises KafkaError."""

    async def put_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Write and publish a topic's explicit configuration."""

    async def put_broker_config(self, broker_id: int | None, configs: Mapping[str, str]) -> None:
        """Write and publish a broker's dynamic configuration; with None the cluster-wide default."""


class ConfigTarget(Protocol):
    """The place of configuration changes: the controller, or in ZooKeeper mode each broker (`member_changes`)."""

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> ClusterMetadata: ...

    @property
    def configs(self) -> ConfigWriter: ...

    def check_active(self) -> None:
        """Raise KafkaError NOT_CONTROLLER unless changes are made here."""

    async def pause(self) -> None:
        """Let other work run."""

    async def request(self, description: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a part of an admin request, after those before it."""


class ConfigAdmin:
    """Configuration changes by one broker. `on_levels` is called after the levels of loggers were changed."""

    def __init__(
        self,
        target: ConfigTarget,
        configs: BrokerConfigs,
        client_metrics: ClientMetricsConfigs,
        on_levels: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = target
        self._on_levels = on_levels
        self._client_metrics = client_metrics
        self._image = target.image
        self._configs = configs
        self._broker_properties = type(configs.static).declared()

    async def alter_configs(
        self, request: AlterConfigsRequest, authorize: Authorize = allow_all
    ) -> AlterConfigsResponse:
        """Replace whole configurations; a property that the request does not name returns to its default."""
        errors = await self._alter(request.resources, _replacement, request.validate_only, authorize)

        def response(number: int) -> AlterConfigsResponseAlterConfigsResourceResponse:
            resource, error = request.resources[number], errors[number]
            return AlterConfigsResponseAlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )

        return AlterConfigsResponse(responses=rows(response, range(len(errors))))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, authorize: Authorize = allow_all
    ) -> IncrementalAlterConfigsResponse:
        """Change single values. All changes of a resource are made, or none."""
        errors = await self._alter(request.resources, self._increment, request.validate_only, authorize)

        def response(number: int) -> IncrementalAlterConfigsResponseAlterConfigsResourceResponse:
            resource, error = request.resources[number], errors[number]
            return IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )

        return IncrementalAlterConfigsResponse(responses=rows(response, range(len(errors))))

    async def _alter(
        self, resources: Sequence[R], changed: "Changed[R]", validate_only: bool, authorize: Authorize
    ) -> list[KafkaError | None]:
        """Return the error of each resource, None for one that was changed."""
        if any(resource.resource_type != ResourceType.BROKER_LOGGER for resource in resources):
            self._target.check_active()
        counts: Counter[tuple[int, str]] = Counter()
        for first in range(0, len(resources), _RESOURCES_PER_PAUSE):
            if first:
                await self._target.pause()
            some = resources[first : first + _RESOURCES_PER_PAUSE]
            counts.update((resource.resource_type, resource.resource_name) for resource in some)
        errors: list[KafkaError | None] = []
        for resource in resources:
            await self._target.pause()
            try:
                if counts[resource.resource_type, resource.resource_name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                _check_entries(resource)
                if _is_of_loggers(resource):
                    _check_authorized(authorize, resource)
                    alter_loggers(self._target.broker_id, resource, validate_only)
                    self._on_levels()
                else:
                    await self._target.request(
                        "alter configuration",
                        partial(self._alter_one, resource, changed, validate_only, authorize),
                    )
            except KafkaError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors

    async def _alter_one(
        self, resource: R, changed: "Changed[R]", validate_only: bool, authorize: Authorize
    ) -> None:
        """Change one resource. As in Kafka, the error of a broker's configuration precedes that of a missing right.

        Checks of a change follow the right: they read files that the client names, and verify passwords.
        """
        name = resource.resource_name
        if resource.resource_type == ResourceType.TOPIC:
            _check_authorized(authorize, resource)
            configs = changed(resource, self._image.topic_configs.get(name, {}))
            self._check_topic(name, configs)
            if not validate_only:
                await self._target.configs.put_topic_config(name, configs)
                logger.info("changed configuration topic=%s names=%s", name, _names(resource))
        elif resource.resource_type == ResourceType.BROKER:
            broker_id = self._parse_broker(name)
            stored = self._image.broker_configs.get(broker_id, {})
            current = self._configs.decode(stored)
            configs = changed(resource, current)
            check_value_sizes(configs, current)
            check_total_size(configs, current)
            resolved = self._check_broker(broker_id, configs)
            _check_authorized(authorize, resource)
            self._check_change(resolved)
            if not validate_only:
                kept = _find_unreadable(resource, stored, current)
                await self._target.configs.put_broker_config(broker_id, {**kept, **self._encode(configs, stored)})
                logger.info("changed configuration broker=%s names=%s", name or "default", _names(resource))
        elif resource.resource_type == ResourceType.CLIENT_METRICS:
            _check_authorized(authorize, resource)
            await self._alter_subscription(resource, changed, validate_only)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")

    async def _alter_subscription(self, resource: R, changed: "Changed[R]", validate_only: bool) -> None:
        name = resource.resource_name
        current = self._client_metrics.find(name)
        configs = changed(resource, current)
        self._client_metrics.check(name, configs)
        check_value_sizes(configs, current)
        if not validate_only:
            await self._client_metrics.put(name, configs)
            logger.info("changed configuration client_metrics=%s names=%s", shorten(name), _names(resource))

    async def encrypt_again(self) -> None:
        """Encrypt this broker's stored passwords with the present secret, after it was changed. Raises KafkaError."""
        await self._target.request("encrypt passwords again", self._encrypt_again)

    async def _encrypt_again(self) -> None:
        broker_id = self._target.broker_id
        stored = self._image.broker_configs.get(broker_id, {})
        # Passwords that cannot be decrypted remain.
        configs = {**stored, **self._encode(self._configs.decode(stored), stored)}
        if configs != stored:
            await self._target.configs.put_broker_config(broker_id, configs)
            logger.info("encrypted the stored passwords of this broker with password.encoder.secret")

    def _check_topic(self, name: str, configs: Mapping[str, str]) -> None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        check_topic_configs(configs, self._configs.topic_defaults)
        if name not in self._image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")

    def _parse_broker(self, name: str) -> int | None:
        """Return the broker that a resource names, None for the cluster-wide default; only this broker is accepted."""
        if not name:
            return None
        broker_id = parse_broker_id(name)
        if broker_id != self._target.broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {self._target.broker_id}, not {name}"
            )
        return broker_id

    def _check_broker(self, broker_id: int | None, configs: Mapping[str, str]) -> PropertySet:
        """Return the effective properties. Raises INVALID_REQUEST, which Kafka returns even for an invalid value."""
        fixed = sorted(name for name in configs if self._mode(name) is UpdateMode.READ_ONLY)
        if fixed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}"
            )
        general = sorted(filter(requires_listener, configs))
        if general:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "These security configs can be dynamically updated only per-listener using the listener prefix: "
                f"{', '.join(general)}",
            )
        for name, value in configs.items():
            prop = self._property(name)
            if prop is not None:
                try:
                    prop.parse(value)
                except PropertyError as error:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if broker_id is None:
            own = sorted(name for name in configs if self._mode(name) is UpdateMode.PER_BROKER)
            if own:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Cannot update these configs at default cluster level, broker id must be specified: "
                    f"{', '.join(own)}",
                )
        try:
            resolved = self._resolve(broker_id, configs)
            resolved.validate()
        except PropertyError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        return resolved

    def _check_change(self, resolved: PropertySet) -> None:
        """Raise KafkaError INVALID_REQUEST if the broker cannot change to these properties."""
        try:
            resolved.validate_change(self._configs.current)
        except PropertyError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _encode(self, configs: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
        try:
            return self._configs.encode(configs, stored)
        except PropertyError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _resolve(self, broker_id: int | None, configs: Mapping[str, str]) -> PropertySet:
        if broker_id is None:
            return self._configs.resolve(configs, self._configs.dynamic_broker())
        return self._configs.resolve(self._configs.dynamic_default(), configs)

    def _property(self, name: str) -> Property[object] | None:
        return find_property(self._broker_properties, name)

    def _mode(self, name: str) -> UpdateMode | None:
        """Return the update mode of a property; None for a name that is not declared."""
        prop = self._property(name)
        return None if prop is None else prop.update_mode

    def _increment(
        self, resource: IncrementalAlterConfigsRequestAlterConfigsResource, current: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the configuration that results from a resource's operations on the current one."""
        # As in Apache Kafka 4.3 the lists of client metrics can only be replaced.
        properties = {
            ResourceType.TOPIC: LogConfig.declared(), ResourceType.BROKER: self._broker_properties,
        }.get(ResourceType(resource.resource_type), {})  # fmt: skip
        configs = dict(current)
        for entry in resource.configs:
            value = self._value(entry, configs.get(entry.name), properties.get(entry.name))
            if value is None:
                configs.pop(entry.name, None)
            else:
                configs[entry.name] = value
        return configs

    @staticmethod
    def _value(
        entry: IncrementalAlterConfigsRequestAlterableConfig, current: str | None, prop: Property[object] | None
    ) -> str | None:
        try:
            operation = Operation(entry.config_operation)
        except ValueError:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown operations type {entry.config_operation}"
            ) from None
        if operation is Operation.SET:
            return entry.value
        if operation is Operation.DELETE:
            return None
        if prop is None or prop.kind is not Kind.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Can't {operation.name} to key {entry.name}: its type is not a list"
            )
        if current is None:
            current = prop.format(prop.default)
        values = [value for value in (current or "").split(",") if value]
        changed = (entry.value or "").split(",")
        return ",".join(_add(values, changed) if operation is Operation.APPEND else _remove(values, changed))

    def list_config_resources(
        self, request: ListConfigResourcesRequest, version: int, groups: Collection[str] = ()
    ) -> ListConfigResourcesResponse:
        """List resources that may have a configuration. Version 0 lists client metrics only."""
        known = [ResourceType.CLIENT_METRICS] if version == 0 else list(ResourceType)
        wanted = request.resource_types or [int(kind) for kind in known]
        if any(kind not in known for kind in wanted):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        metadata = self._configs.image
        brokers = [str(broker) for broker in sorted(metadata.brokers)]
        names: dict[ResourceType, Collection[str]] = {
            ResourceType.GROUP: groups,
            ResourceType.CLIENT_METRICS: self._client_metrics.list_names(),
            ResourceType.BROKER_LOGGER: brokers,
            ResourceType.BROKER: brokers,
            ResourceType.TOPIC: sorted(metadata.topics),
        }
        listed = [(kind, name) for kind, found in names.items() if kind in wanted for name in found]
        return ListConfigResourcesResponse(
            config_resources=rows(
                lambda one: ListConfigResourcesResponseConfigResource(resource_name=one[1], resource_type=one[0]),
                listed,
            )
        )


def _add(values: list[str], added: Iterable[str]) -> list[str]:
    """Append the entries of `added` that `values` does not contain."""
    present = set(values)
    return values + [value for value in dict.fromkeys(added) if value not in present]


def _remove(values: list[str], removed: Iterable[str]) -> list[str]:
    """Remove from `values` the first occurrence of each entry of `removed`."""
    counts = Counter(removed)
    kept = []
    for value in values:
        if counts[value] > 0:
            counts[value] -= 1
        else:
            kept.append(value)
    return kept


def _is_of_loggers(resource: _Resource) -> TypeGuard[IncrementalAlterConfigsRequestAlterConfigsResource]:
    """Return whether a resource is a broker's loggers. AlterConfigs does not have this type."""
    return (
        isinstance(resource, IncrementalAlterConfigsRequestAlterConfigsResource)
        and resource.resource_type == ResourceType.BROKER_LOGGER
    )


def _check_authorized(authorize: Authorize, resource: _Resource) -> None:
    error = authorize(resource.resource_type, resource.resource_name)
    if error is not None:
        raise error


def _check_entries(resource: _Resource) -> None:
    if len(resource.configs) > MAX_ENTRIES:
        raise too_many_entries()
    names = [entry.name for entry in resource.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        entry.name
        for entry in resource.configs
        if entry.value is None and getattr(entry, "config_operation", Operation.SET) != Operation.DELETE
    ]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _find_unreadable(
    resource: _Resource, stored: Mapping[str, str], current: Mapping[str, str]
) -> dict[str, str]:
    """Return the stored passwords that cannot be decrypted and that a change of single values does not name.

    They can be decrypted again once the secret is corrected.
    """
    if not isinstance(resource, IncrementalAlterConfigsRequestAlterConfigsResource):
        return {}
    names = {entry.name for entry in resource.configs}
    return {name: value for name, value in stored.items() if name not in current and name not in names}


def _replacement(
    resource: AlterConfigsRequestAlterConfigsResource, current: Mapping[str, str]
) -> dict[str, str]:
    return {entry.name: entry.value for entry in resource.configs if entry.value is not None}


def _names(resource: _Resource) -> str:
    names = ",".join(entry.name for entry in resource.configs)
    return names if len(names) <= _LOGGED_LENGTH else f"{names[:_LOGGED_LENGTH]}..."
