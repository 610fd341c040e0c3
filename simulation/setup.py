"""Setup before the clients start: topics, and the finalized transaction.version."""

from typing import TYPE_CHECKING, Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesRequestFeatureUpdateKey
from odradek.simulation.scenario import Scenario, Topic

if TYPE_CHECKING:
    from odradek.simulation.world import World

_UPGRADE, _SAFE_DOWNGRADE = 1, 2


async def prepare(world: "World", scenario: Scenario) -> None:
    """Create the topics of a scenario and set its transaction.version. There are no faults yet."""
    connection = await world.connect()

    async def ask(message: Any, version: int) -> Any:
        return await connection.request(message, version, client_id="setup")

    request = CreateTopicsRequest(topics=[_creatable(topic) for topic in scenario.topics], timeout_ms=10_000)
    for row in (await ask(request, 7)).topics:
        if row.error_code != ErrorCode.NONE:
            world.fail(f"topic {row.name} cannot be created: {row.error_code} {row.error_message}")
    update = UpdateFeaturesRequestFeatureUpdateKey(
        feature="transaction.version", max_version_level=scenario.transaction_version, upgrade_type=_SAFE_DOWNGRADE
    )
    answer = await ask(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000), 1)
    world.trace(f"transaction.version {scenario.transaction_version}: {answer.error_code} {answer.error_message}")
    connection.close()


def _creatable(topic: Topic) -> CreateTopicsRequestCreatableTopic:
    configs = [
        CreateTopicsRequestCreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
    ]
    return CreateTopicsRequestCreatableTopic(
        name=topic.name, num_partitions=topic.partitions, replication_factor=1, configs=configs
    )
