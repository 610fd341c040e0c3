"""DescribeConfigs: values in force with their sources, synonyms and documentation (KIP-226, KIP-569)."""

from collections.abc import Collection, Iterable
from typing import Any

from odradek.log.config import LogConfig
from odradek.properties import Property, UpdateMode
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResourceResult,
    DescribeConfigsResponseDescribeConfigsResult,
    DescribeConfigsResponseDescribeConfigsSynonym,
)
from odradek.replication.broker_configs import BrokerConfigs, broker_synonyms, listener_base
from odradek.replication.cluster_metadata import ClusterMetadata
from odradek.replication.config_admin import ResourceType, parse_broker_id
from odradek.replication.config_sources import ConfigSource, SourcedValue, broker_values
from odradek.replication.topic_names import check_topic_name

UNKNOWN_KIND = 0


class ConfigDescriber:
    """Describes the configuration of topics, of this broker, and the cluster-wide broker default."""

    def __init__(self, broker_id: int, image: ClusterMetadata, configs: BrokerConfigs) -> None:
        self._broker_id = broker_id
        self._image = image
        self._configs = configs

    def describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """The error of one resource is in its result."""
        results = []
        for resource in request.resources:
            code, message = ErrorCode.NONE, None
            entries: list[DescribeConfigsResponseDescribeConfigsResourceResult] = []
            try:
                entries = self._entries(resource)
            except KafkaError as error:
                code, message = error.code, error.message
            for entry in entries:
                if not request.include_synonyms:
                    entry.synonyms = []
                if not request.include_documentation:
                    entry.documentation = None
            results.append(
                DescribeConfigsResponseDescribeConfigsResult(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=entries,
                )
            )
        return DescribeConfigsResponse(results=results)

    def _entries(
        self, resource: DescribeConfigsRequestDescribeConfigsResource
    ) -> list[DescribeConfigsResponseDescribeConfigsResourceResult]:
        name = resource.resource_name
        wanted = frozenset(resource.configuration_keys or ())
        if resource.resource_type == ResourceType.TOPIC:
            return self._topic(name, wanted)
        if resource.resource_type == ResourceType.BROKER:
            if not name:
                return self._broker_default(wanted)
            if parse_broker_id(name) != self._broker_id:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {self._broker_id} or empty string, but received {name}",
                )
            return self._broker(wanted)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")

    def _topic(
        self, topic: str, wanted: Collection[str]
    ) -> list[DescribeConfigsResponseDescribeConfigsResourceResult]:
        check_topic_name(topic)
        if topic not in self._image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        config = self._configs.topic(topic)
        explicit = self._image.topic_configs.get(topic, {})
        entries = []
        for name, prop in LogConfig.declared().items():
            is_explicit = name in explicit
            if (prop.internal and not is_explicit) or (wanted and name not in wanted):
                continue
            text = config.text(name)
            values: list[SourcedValue] = []
            if prop.synonyms:
                synonym = prop.synonyms[0].name
                values = broker_values(synonym, broker_synonyms(synonym), self._configs)
            if is_explicit:
                values.insert(0, SourcedValue(name, text or "", ConfigSource.TOPIC))
            entries.append(_entry(name, text, prop, values, read_only=False))
        return entries

    def _broker(self, wanted: Collection[str]) -> list[DescribeConfigsResponseDescribeConfigsResourceResult]:
        current = self._configs.current
        entries = []
        for name, prop in type(current).declared().items():
            if not prop.internal and (not wanted or name in wanted):
                values = broker_values(name, broker_synonyms(name), self._configs)
                entries.append(_entry(name, current.text(name), prop, values, _is_read_only(prop)))
        dynamic = {**self._configs.dynamic_default(), **self._configs.dynamic_broker()}
        for name, value in dynamic.items():
            if name not in type(current).declared() and (not wanted or name in wanted):
                entries.append(self._dynamic_entry(name, value, only_default=False))
        return entries

    def _broker_default(
        self, wanted: Collection[str]
    ) -> list[DescribeConfigsResponseDescribeConfigsResourceResult]:
        return [
            self._dynamic_entry(name, value, only_default=True)
            for name, value in self._configs.dynamic_default().items()
            if not wanted or name in wanted
        ]

    def _dynamic_entry(
        self, name: str, value: str, *, only_default: bool
    ) -> DescribeConfigsResponseDescribeConfigsResourceResult:
        declared = type(self._configs.static).declared()
        prop = declared.get(name) or declared.get(listener_base(name) or "")
        values = broker_values(name, broker_synonyms(name), self._configs)
        if only_default:
            values = [v for v in values if v.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
        return _entry(name, value, prop, values, _is_read_only(prop))


def _is_read_only(prop: Property[Any] | None) -> bool:
    return prop is None or prop.update_mode is UpdateMode.READ_ONLY


def _entry(
    name: str, value: str | None, prop: Property[Any] | None, values: Iterable[SourcedValue], read_only: bool
) -> DescribeConfigsResponseDescribeConfigsResourceResult:
    """One described value. What nobody declared may be a secret, and is treated as one."""
    hide = prop is None or prop.sensitive
    synonyms = [
        DescribeConfigsResponseDescribeConfigsSynonym(
            name=synonym.name, value=None if hide else synonym.value, source=synonym.source
        )
        for synonym in values
    ]
    return DescribeConfigsResponseDescribeConfigsResourceResult(
        name=name,
        value=None if hide else value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=hide,
        synonyms=synonyms,
        config_type=UNKNOWN_KIND if prop is None else prop.kind,
        documentation=None if prop is None else prop.doc,
    )
