"""Requests of an administrator: create, grow and delete topics, delete records, change configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsPartition,
    DeleteRecordsRequestDeleteRecordsTopic,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.simulation.clients.link import Link
from odradek.simulation.history import Partition

VERSIONS: Final = {0: (13, 13), 3: (12, 13), 8: (10, 10), 9: (8, 9), 10: (1, 6), 19: (7, 7), 20: (6, 6)}
"""Versions with topic ids, so that a delayed request cannot affect a later topic of the name."""
_TIMEOUT_MS: Final = 1_500
_SET, _DELETE = 0, 1

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4


async def create_topic(
    link: Link, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int = 1
) -> Any:
    """Return the result of CreateTopics. Raises ConnectionLost."""
    topic = CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreateTopicsRequestCreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    return (await link.request(CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS))).topics[0]


async def delete_topic(link: Link, topic_id: bytes) -> ErrorCode:
    """Return the error code of DeleteTopics by id. Raises ConnectionLost."""
    state = DeleteTopicsRequestDeleteTopicState(topic_id=topic_id)
    answer = await link.request(DeleteTopicsRequest(topics=[state], timeout_ms=_TIMEOUT_MS))
    return ErrorCode(answer.responses[0].error_code)


async def describe_topic(link: Link, name: str) -> Any:
    """Return the topic's entry of Metadata. Raises ConnectionLost."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return (await link.request(request)).topics[0]


async def grow_topic(link: Link, name: str, count: int) -> ErrorCode:
    """Return the error code of CreatePartitions. Raises ConnectionLost."""
    topic = CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=None)
    answer = await link.request(CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS))
    return ErrorCode(answer.results[0].error_code)


async def delete_records(link: Link, partition: Partition, offset: int) -> Any:
    """Return the result of DeleteRecords for one partition. Raises ConnectionLost."""
    row = DeleteRecordsRequestDeleteRecordsPartition(partition_index=partition[1], offset=offset)
    topic = DeleteRecordsRequestDeleteRecordsTopic(name=partition[0], partitions=[row])
    answer = await link.request(DeleteRecordsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS))
    return answer.topics[0].partitions[0]


async def alter_topic(link: Link, name: str, configs: Mapping[str, str | None]) -> ErrorCode:
    """Return the error code of IncrementalAlterConfigs for a topic. Raises ConnectionLost."""
    return await alter_configs(link, TOPIC_RESOURCE, name, configs)


async def alter_configs(link: Link, resource_type: int, name: str, configs: Mapping[str, str | None]) -> ErrorCode:
    """Return the error code of IncrementalAlterConfigs for a topic or a broker. Raises ConnectionLost."""
    answer = await link.request(alteration(resource_type, name, configs))
    return ErrorCode(answer.responses[0].error_code)


def alteration(resource_type: int, name: str, configs: Mapping[str, str | None]) -> IncrementalAlterConfigsRequest:
    """Return a request that sets properties of a topic or a broker; None removes a property."""
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequestAlterableConfig(
                name=key, config_operation=_DELETE if value is None else _SET, value=value
            )
            for key, value in configs.items()
        ],
    )
    return IncrementalAlterConfigsRequest(resources=[resource])
