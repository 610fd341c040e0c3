"""Changes of the configurations of resources."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.tools.kafka.cluster import Cluster, check
from odradek.tools.kafka.topics.configs import RESOURCE_TYPES, Resource, is_for_one_broker

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

Operation = tuple[str, int, str | None]
"""Name, code of the operation, and value."""


def set_configs(cluster: Cluster, kind: str, name: str, values: Mapping[str, str]) -> None:
    """Set configurations of a resource. Raises RequestError."""
    for _, code, message in send_config_changes(
        cluster, [(kind, name)], [(key, SET, value) for key, value in values.items()]
    ):
        check(code, message, f"{kind} {name}")


def send_config_changes(
    cluster: Cluster, resources: Sequence[Resource], operations: Sequence[Operation], *, is_dry_run: bool = False
) -> Iterator[tuple[str, int, str | None]]:
    """Send a change of resources, for one broker or for any; yield name, error code and message of each."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=RESOURCE_TYPES[kind],
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=code, value=value)
                    for key, code, value in operations
                ],
            )
            for kind, name in resources
        ],
        validate_only=is_dry_run,
    )
    if is_for_one_broker(resources[0]):
        response = cluster.broker(int(resources[0][1])).send(request, IncrementalAlterConfigsResponse)
    else:
        response = cluster.ask_controller(request, IncrementalAlterConfigsResponse)
    for one in response.responses:
        yield one.resource_name, one.error_code, one.error_message
