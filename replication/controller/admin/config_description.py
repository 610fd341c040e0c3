"""DescribeConfigs: values in force with their sources, synonyms and documentation (KIP-226, KIP-569)."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from odradek.log.config import LogConfig
from odradek.properties import Property, UpdateMode
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsSynonym,
)
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsResponseDescribeConfigsResourceResult as _Entry,
)
from odradek.protocol.messages.describe_configs import DescribeConfigsResponseDescribeConfigsResult as _Result
from odradek.protocol.schema import rows
from odradek.replication.controller.admin.broker_loggers import describe_logger, list_loggers
from odradek.replication.controller.configs.resources import ClientMetricsConfigs, ResourceType, parse_broker_id
from odradek.replication.controller.configs.sources import ConfigSource, SourcedValue, broker_values
from odradek.replication.metadata.broker_configs import BrokerConfigs, broker_synonyms
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.topic_names import check_topic_name

UNKNOWN_KIND = 0
_DescribeOne = Callable[[str], _Entry]


class ConfigDescriber:
    """Describes the configuration of topics, this broker, its loggers, the cluster-wide default, and client metrics."""

    def __init__(
        self, broker_id: int, image: ClusterMetadata, configs: BrokerConfigs, client_metrics: ClientMetricsConfigs
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._configs = configs
        self._client_metrics = client_metrics

    def describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Return a response whose rows are created while it is encoded. An error of one resource is in its result.

        A resource that the request repeats is refused: its description may be a thousand times as long as its name.
        """
        first_numbers: dict[tuple[int, str | int], int] = {}

        def result(number: int) -> _Result:
            resource = request.resources[number]
            code: ErrorCode = ErrorCode.NONE
            message: str | None = ""
            names: list[str] = []
            describe: _DescribeOne = _describe_nothing
            try:
                if first_numbers.setdefault(_identity(resource), number) != number:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                names, describe = self._names(resource)
            except KafkaError as error:
                code, message = error.code, error.message

            def entry(name: str) -> _Entry:
                described = describe(name)
                if not request.include_synonyms:
                    described.synonyms = []
                if not request.include_documentation:
                    described.documentation = None
                return described

            return _Result(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=rows(entry, names),
            )

        return DescribeConfigsResponse(results=rows(result, range(len(request.resources))))

    def _names(self, resource: DescribeConfigsRequestDescribeConfigsResource) -> tuple[list[str], _DescribeOne]:
        """Return the names of the values to describe, and the function that describes one of them."""
        name = resource.resource_name
        requested = frozenset(resource.configuration_keys or ())
        if resource.resource_type == ResourceType.TOPIC:
            return self._topic(name, requested)
        if resource.resource_type == ResourceType.BROKER:
            if not name:
                return self._broker_default(requested)
            if parse_broker_id(name) != self._broker_id:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {self._broker_id} or empty string, but received {name}",
                )
            return self._broker(requested)
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            return self._loggers(name, requested)
        if resource.resource_type == ResourceType.CLIENT_METRICS:
            return self._subscription(name, requested)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")

    def _topic(self, topic: str, requested: Collection[str]) -> tuple[list[str], _DescribeOne]:
        check_topic_name(topic)
        if topic not in self._image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        config = self._configs.topic(topic)
        explicit = self._image.topic_configs.get(topic, {})
        declared = LogConfig.declared()

        def describe(name: str) -> _Entry:
            text, prop = config.text(name), declared[name]
            values: list[SourcedValue] = []
            if prop.synonyms:
                synonym = prop.synonyms[0].name
                values = broker_values(synonym, broker_synonyms(synonym), self._configs)
            if name in explicit:
                values.insert(0, SourcedValue(name, text or "", ConfigSource.TOPIC))
            return _entry(name, text, prop, values, read_only=False)

        names = [
            name
            for name, prop in declared.items()
            if (name in explicit or not prop.internal) and (not requested or name in requested)
        ]
        return names, describe

    def _broker(self, requested: Collection[str]) -> tuple[list[str], _DescribeOne]:
        current = self._configs.current
        declared = type(current).declared()
        dynamic = {**self._configs.dynamic_default(), **self._configs.dynamic_broker()}

        def describe(name: str) -> _Entry:
            prop = declared.get(name)
            if prop is None:
                return self._dynamic_entry(name, dynamic[name], only_default=False)
            values = broker_values(name, broker_synonyms(name), self._configs)
            return _entry(name, current.text(name), prop, values, _is_read_only(prop))

        names = [name for name, prop in declared.items() if not prop.internal]
        names += [name for name in dynamic if name not in declared or declared[name].internal]
        return [name for name in names if not requested or name in requested], describe

    def _broker_default(self, requested: Collection[str]) -> tuple[list[str], _DescribeOne]:
        values = dict(self._configs.dynamic_default())
        names = [name for name in values if not requested or name in requested]
        return names, lambda name: self._dynamic_entry(name, values[name], only_default=True)

    def _loggers(self, broker: str, requested: Collection[str]) -> tuple[list[str], _DescribeOne]:
        if not broker:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if parse_broker_id(broker) != self._broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {self._broker_id} but received {broker}"
            )
        loggers = list_loggers()
        names = [name for name in loggers if not requested or name in requested]
        return names, lambda name: describe_logger(name, loggers[name])

    def _subscription(self, name: str, requested: Collection[str]) -> tuple[list[str], _DescribeOne]:
        """Describe a subscription of client metrics. As in Kafka it need not exist: then it has the defaults."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        configs, declared = self._client_metrics.find(name), self._client_metrics.declared

        def describe(name: str) -> _Entry:
            prop = declared[name]
            text = prop.format(prop.parse(configs[name]) if name in configs else prop.default)
            values = [SourcedValue(name, text or "", ConfigSource.CLIENT_METRICS)] if name in configs else []
            return _entry(name, text, prop, values, read_only=False)

        return [name for name in declared if not requested or name in requested], describe

    def _dynamic_entry(self, name: str, value: str, *, only_default: bool) -> _Entry:
        declared = type(self._configs.static).declared()
        prop = declared.get(broker_synonyms(name)[-1])
        values = broker_values(name, broker_synonyms(name), self._configs)
        if only_default:
            values = [v for v in values if v.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
        return _entry(name, value, prop, values, _is_read_only(prop))


def _identity(resource: DescribeConfigsRequestDescribeConfigsResource) -> tuple[int, str | int]:
    """Return a key of the resource: several resource names may denote the same broker. Raises KafkaError."""
    kind, name = resource.resource_type, resource.resource_name
    is_broker = kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return kind, parse_broker_id(name) if is_broker and name else name


def _describe_nothing(name: str) -> _Entry:
    raise AssertionError(name)


def _is_read_only(prop: Property[Any] | None) -> bool:
    return prop is None or prop.update_mode is UpdateMode.READ_ONLY


def _entry(
    name: str, value: str | None, prop: Property[Any] | None, values: Iterable[SourcedValue], read_only: bool
) -> _Entry:
    """Describe one value. A property that is not declared may be a secret, and is treated as sensitive."""
    hide = prop is None or prop.sensitive
    synonyms = [
        DescribeConfigsResponseDescribeConfigsSynonym(
            name=synonym.name, value=None if hide else synonym.value, source=synonym.source
        )
        for synonym in values
    ]
    return _Entry(
        name=name,
        value=None if hide else value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=hide,
        synonyms=synonyms,
        config_type=UNKNOWN_KIND if prop is None else prop.kind,
        documentation=None if prop is None else prop.doc,
    )
