"""The operations that APIs need, as the table of APIs declares them (`server.apis`)."""

from typing import Final, NamedTuple

from odradek.server.security.authorization.operations import Operation, ResourceType


class Need(NamedTuple):
    """An operation on a resource that a request names, or on the cluster."""

    resource_type: ResourceType
    operation: Operation


READ_TOPIC: Final = Need(ResourceType.TOPIC, Operation.READ)
WRITE_TOPIC: Final = Need(ResourceType.TOPIC, Operation.WRITE)
CREATE_TOPIC: Final = Need(ResourceType.TOPIC, Operation.CREATE)
DELETE_TOPIC: Final = Need(ResourceType.TOPIC, Operation.DELETE)
ALTER_TOPIC: Final = Need(ResourceType.TOPIC, Operation.ALTER)
DESCRIBE_TOPIC: Final = Need(ResourceType.TOPIC, Operation.DESCRIBE)
DESCRIBE_TOPIC_CONFIGS: Final = Need(ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)
ALTER_TOPIC_CONFIGS: Final = Need(ResourceType.TOPIC, Operation.ALTER_CONFIGS)

READ_GROUP: Final = Need(ResourceType.GROUP, Operation.READ)
DELETE_GROUP: Final = Need(ResourceType.GROUP, Operation.DELETE)
DESCRIBE_GROUP: Final = Need(ResourceType.GROUP, Operation.DESCRIBE)
DESCRIBE_GROUP_CONFIGS: Final = Need(ResourceType.GROUP, Operation.DESCRIBE_CONFIGS)

WRITE_TRANSACTIONAL_ID: Final = Need(ResourceType.TRANSACTIONAL_ID, Operation.WRITE)
DESCRIBE_TRANSACTIONAL_ID: Final = Need(ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)

CREATE_CLUSTER: Final = Need(ResourceType.CLUSTER, Operation.CREATE)
DELETE_CLUSTER: Final = Need(ResourceType.CLUSTER, Operation.DELETE)
ALTER_CLUSTER: Final = Need(ResourceType.CLUSTER, Operation.ALTER)
DESCRIBE_CLUSTER: Final = Need(ResourceType.CLUSTER, Operation.DESCRIBE)
CLUSTER_ACTION: Final = Need(ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
DESCRIBE_CLUSTER_CONFIGS: Final = Need(ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)
ALTER_CLUSTER_CONFIGS: Final = Need(ResourceType.CLUSTER, Operation.ALTER_CONFIGS)
IDEMPOTENT_WRITE: Final = Need(ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE)

CREATE_TOKENS_OF_USER: Final = Need(ResourceType.USER, Operation.CREATE_TOKENS)
DESCRIBE_TOKENS_OF_USER: Final = Need(ResourceType.USER, Operation.DESCRIBE_TOKENS)
DESCRIBE_DELEGATION_TOKEN: Final = Need(ResourceType.DELEGATION_TOKEN, Operation.DESCRIBE)
