"""DescribeConfigs 1-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1 (KIP-339), ListConfigResources 0-1 (KIP-1142).

Sources and synonyms of a value: KIP-226; its documentation: KIP-569. Each resource has an error of its own.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
)
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResult,
)
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from odradek.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek.protocol.schema import rows
from odradek.replication.controller.admin.configs import allow_all
from odradek.replication.controller.configs.resources import ResourceType as ConfigResourceType
from odradek.server.security.authorization.operations import CLUSTER_NAME, ResourceType
from odradek.server.security.authorization.rights import make_authorization_error
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.admin.config_description import ConfigDescriber
    from odradek.replication.controller.admin.configs import Authorize, ConfigAdmin
    from odradek.server.request import RequestContext
    from odradek.server.security.authorization.rights import Rights


_RESOURCE_TYPES: Final[dict[int, ResourceType]] = {
    ConfigResourceType.TOPIC: ResourceType.TOPIC,
    ConfigResourceType.BROKER: ResourceType.CLUSTER,
    ConfigResourceType.BROKER_LOGGER: ResourceType.CLUSTER,
    ConfigResourceType.CLIENT_METRICS: ResourceType.CLUSTER,
    ConfigResourceType.GROUP: ResourceType.GROUP,
}
"""The type of resource on which an operation on a configuration needs a right."""


class ConfigServices(Protocol):
    """The parts of a broker that requests about configurations need."""

    @property
    def config_admin(self) -> "ConfigAdmin": ...

    @property
    def config_describer(self) -> "ConfigDescriber": ...


def find_config_error(rights: "Rights", resource_type: int, name: str) -> KafkaError | None:
    """Return the error of a client without the right to a configuration. An unknown type of resource needs no right."""
    needed = _RESOURCE_TYPES.get(resource_type)
    if needed is None or rights.allows(needed, CLUSTER_NAME if needed is ResourceType.CLUSTER else name):
        return None
    return make_authorization_error(needed)


def _find_check(context: "RequestContext") -> "Authorize":
    rights = context.rights
    return allow_all if rights is None else partial(find_config_error, rights)


def describe_configs(
    services: ConfigServices, context: "RequestContext", request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Return the effective values of each resource, with their sources."""
    return services.config_describer.describe(request)


def describe_configs_error(
    request: DescribeConfigsRequest, version: int, error: KafkaError
) -> DescribeConfigsResponse:
    """Return `error` for every resource."""
    return DescribeConfigsResponse(
        results=rows(
            lambda resource: DescribeConfigsResponseDescribeConfigsResult(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            ),
            request.resources,
        )
    )


def alter_configs(
    services: ConfigServices, context: "RequestContext", request: AlterConfigsRequest
) -> "Deferred[AlterConfigsResponse]":
    """Replace all explicitly set values of each resource."""
    return carry_through(services.config_admin.alter_configs(request, _find_check(context)))


def alter_configs_error(request: AlterConfigsRequest, version: int, error: KafkaError) -> AlterConfigsResponse:
    """Return `error` for every resource."""
    return AlterConfigsResponse(
        responses=rows(
            lambda resource: AlterConfigsResponseAlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            ),
            request.resources,
        )
    )


def incremental_alter_configs(
    services: ConfigServices, context: "RequestContext", request: IncrementalAlterConfigsRequest
) -> "Deferred[IncrementalAlterConfigsResponse]":
    """Set, delete, append to or subtract from single values of each resource."""
    return carry_through(services.config_admin.incremental_alter_configs(request, _find_check(context)))


def incremental_alter_configs_error(
    request: IncrementalAlterConfigsRequest, version: int, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    """Return `error` for every resource."""
    return IncrementalAlterConfigsResponse(
        responses=rows(
            lambda resource: IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            ),
            request.resources,
        )
    )


def list_config_resources(
    services: ConfigServices, context: "RequestContext", request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Return the resources of the requested types that have, or may have, a configuration."""
    return services.config_admin.list_config_resources(request, context.api_version)


def list_config_resources_error(
    request: ListConfigResourcesRequest, version: int, error: KafkaError
) -> ListConfigResourcesResponse:
    """Return `error` and no resources."""
    return ListConfigResourcesResponse(error_code=error.code)
