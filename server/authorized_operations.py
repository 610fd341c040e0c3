"""Authorized operations on a resource, for responses (KIP-430).

Without an authorizer all operations of the resource type are authorized. Source: Kafka's AclEntry.
"""

from typing import TYPE_CHECKING, Final

from odradek.server.security.authorization.operations import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
)

if TYPE_CHECKING:
    from odradek.server.security.authorization.rights import Rights

NOT_REQUESTED: Final = -(2**31)
"""The value in a response if the request does not include authorized operations."""


def _encode_operations(resource_type: ResourceType) -> int:
    return sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource_type])


_TOPIC_OPERATIONS: Final = _encode_operations(ResourceType.TOPIC)
_GROUP_OPERATIONS: Final = _encode_operations(ResourceType.GROUP)
_CLUSTER_OPERATIONS: Final = _encode_operations(ResourceType.CLUSTER)


def list_topic_operations(rights: "Rights | None", name: str) -> int:
    """Return the operations on a topic; `rights` is None without authorization."""
    return _TOPIC_OPERATIONS if rights is None else rights.list_operations(ResourceType.TOPIC, name)


def list_group_operations(rights: "Rights | None", group_id: str) -> int:
    """Return the operations on a group."""
    return _GROUP_OPERATIONS if rights is None else rights.list_operations(ResourceType.GROUP, group_id)


def list_cluster_operations(rights: "Rights | None") -> int:
    """Return the operations on the cluster; none if the client may not describe the cluster."""
    if rights is None:
        return _CLUSTER_OPERATIONS
    if not rights.allows_cluster(Operation.DESCRIBE):
        return 0
    return rights.list_operations(ResourceType.CLUSTER, CLUSTER_NAME)
