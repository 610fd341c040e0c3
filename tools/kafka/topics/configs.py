"""Configurations of topics, brokers, loggers, groups and client metrics, read from a cluster and changed."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResourceResult,
)
from odradek.tools.kafka.cluster import Cluster, make_error
from odradek.tools.kafka.connection.wire_client import WireClient

TOPIC: Final = "topic"
BROKER: Final = "broker"
BROKER_LOGGER: Final = "broker-logger"
CLIENT_METRICS: Final = "client-metrics"
GROUP: Final = "group"

RESOURCE_TYPES: Final = {TOPIC: 2, BROKER: 4, BROKER_LOGGER: 8, CLIENT_METRICS: 16, GROUP: 32}

_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "server.properties",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
_CHANGED: Final = {TOPIC: {1}, BROKER: {2, 3, 4}, BROKER_LOGGER: {6}, CLIENT_METRICS: {7}, GROUP: {8}}
"""Sources of values that were set for a resource of this type, or for all of them."""
_DEFAULT_SOURCE: Final = 5
LISTENER_PREFIX: Final = "listener.name."
_UNLISTED: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Configurations of a broker that it describes only while they are set."""
_RESOURCES_PER_REQUEST: Final = 500

Resource = tuple[str, str]
"""Type and name; the name of a broker is its id, and empty for all brokers."""


class ConfigValue(NamedTuple):
    """A configuration of a resource.

    value: None if it is sensitive, or has no value
    source: where the value comes from
    default: the value that applies without that of the resource, for a logger that of the nearest logger above; None if
        it is not reported
    is_changed: the value was set for this resource
    """

    name: str
    value: str | None
    source: str
    default: str | None
    is_changed: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


def fetch_configs(
    cluster: Cluster, resources: Sequence[Resource], *, with_documentation: bool = False
) -> dict[Resource, list[ConfigValue]]:
    """Return the configurations of resources, sorted by name. Raises RequestError for the first that has none."""
    found: dict[Resource, list[ConfigValue]] = {}
    for client, group in _route(cluster, resources):
        for start in range(0, len(group), _RESOURCES_PER_REQUEST):
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequestDescribeConfigsResource(
                        resource_type=RESOURCE_TYPES[kind], resource_name=name, configuration_keys=None
                    )
                    for kind, name in group[start : start + _RESOURCES_PER_REQUEST]
                ],
                include_synonyms=True,
                include_documentation=with_documentation,
            )
            for result in client.send(request, DescribeConfigsResponse).results:
                [kind] = [kind for kind, code in RESOURCE_TYPES.items() if code == result.resource_type]
                if result.error_code:
                    if kind == TOPIC and result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise cluster.unknown_topic(result.resource_name)
                    subject = f"{kind} {result.resource_name}"
                    raise make_error(result.error_code, result.error_message, subject)
                values = [_make_value(kind, one) for one in result.configs]
                if kind == BROKER_LOGGER:
                    values = _mark_own_levels(values)
                found[kind, result.resource_name] = sorted(values)
    return found


def _mark_own_levels(values: list[ConfigValue]) -> list[ConfigValue]:
    # Imported here because few commands use loggers.
    from odradek.tools.kafka.topics.broker_loggers import mark_own_levels

    return mark_own_levels(values)


def is_for_one_broker(resource: Resource) -> bool:
    """True if only the broker itself can describe or change a resource."""
    kind, name = resource
    return kind == BROKER_LOGGER or (kind == BROKER and name != "")


def lists_all_names(resource: Resource, name: str) -> bool:
    """True if a description of a resource has a configuration also while it has no value, unless it does not exist.

    Of all brokers, groups and client metrics only the values that were set may be described, and of the properties of
    listeners.
    """
    kind, resource_name = resource
    if kind == BROKER and name.startswith(LISTENER_PREFIX):
        return False
    return (kind in (TOPIC, BROKER_LOGGER) or (kind == BROKER and resource_name != "")) and name not in _UNLISTED


def _route(cluster: Cluster, resources: Iterable[Resource]) -> Iterable[tuple[WireClient, list[Resource]]]:
    """Group resources by the broker that must be asked."""
    by_broker: dict[str | None, list[Resource]] = defaultdict(list)
    for resource in resources:
        by_broker[resource[1] if is_for_one_broker(resource) else None].append(resource)
    for name, group in by_broker.items():
        yield (cluster.any_broker() if name is None else cluster.broker(int(name))), group


def _make_value(kind: str, one: DescribeConfigsResponseDescribeConfigsResourceResult) -> ConfigValue:
    is_changed = one.config_source in _CHANGED[kind]
    inherited = [synonym for synonym in one.synonyms if synonym.source not in _CHANGED[kind]]
    default = inherited[0].value if inherited else None
    return ConfigValue(
        one.name,
        one.value,
        _SOURCES.get(one.config_source, "unknown"),
        one.value if not is_changed and default is None else default,
        is_changed,
        one.read_only,
        one.is_sensitive,
        one.documentation or None,
    )
