"""Setup before the clients start: topics, and the finalized transaction.version."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesRequestFeatureUpdateKey
from odradek.simulation.clients.lasting_connection import LastingConnection
from odradek.simulation.scenario import Scenario, Topic

if TYPE_CHECKING:
    from odradek.simulation.world import World

_CREATED = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
"""TOPIC_ALREADY_EXISTS is the response to a repeated request."""
_UPGRADE, _SAFE_DOWNGRADE = 1, 2


async def prepare(world: "World", scenario: Scenario) -> None:
    """Create the topics of a scenario and set its transaction.version. There are no faults yet."""
    connection = await world.connect() if world.zookeeper is None else LastingConnection(world)

    async def ask(message: Any, version: int) -> Any:
        return await connection.request(message, version, client_id="setup")

    if world.zookeeper is not None:
        await _wait_for_controller(world, ask)
    request = CreateTopicsRequest(topics=[_creatable(topic, scenario) for topic in scenario.topics], timeout_ms=10_000)
    rows = (await ask(request, 7)).topics
    while any(row.error_code == ErrorCode.NOT_CONTROLLER for row in rows):
        await world.sleep(0.1)
        rows = (await ask(request, 7)).topics
    for row in rows:
        if row.error_code not in _CREATED:
            world.fail(f"topic {row.name} cannot be created: {row.error_code} {row.error_message}")
    update = UpdateFeaturesRequestFeatureUpdateKey(
        feature="transaction.version", max_version_level=scenario.transaction_version, upgrade_type=_SAFE_DOWNGRADE
    )
    answer = await ask(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000), 1)
    world.trace(f"transaction.version {scenario.transaction_version}: {answer.error_code} {answer.error_message}")
    connection.close()


async def _wait_for_controller(world: "World", ask: Callable[[Any, int], Awaitable[Any]]) -> None:
    """Return when the brokers have received the metadata of all of them from a controller."""
    while True:
        answer = await ask(MetadataRequest(topics=[]), 9)
        if len(answer.brokers) == len(world.brokers) and answer.controller_id >= 0:
            return
        await world.sleep(0.1)


def _creatable(topic: Topic, scenario: Scenario) -> CreateTopicsRequestCreatableTopic:
    configs = [
        CreateTopicsRequestCreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
    ]
    return CreateTopicsRequestCreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=scenario.replication_factor,
        configs=configs,
    )
