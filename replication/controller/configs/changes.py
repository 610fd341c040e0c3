"""Changes of configurations by the controller: the store first, then the controller's image, then brokers."""

from collections.abc import Mapping

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs.nodes import config_operations
from odradek.replication.controller.context import ControllerContext
from odradek.replication.metadata import znodes


class ConfigChanges:
    """Writes configurations. Each method is called within an event of the controller. Raises KafkaError."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def put_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Write and publish a topic's explicit configuration. Raises KafkaError also if the topic does not exist."""
        if topic not in self._context.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        await self._put(znodes.topic_config_path(topic), configs)
        self._context.image.put_topic_config(topic, configs)
        self._context.image.publish()

    async def put_broker_config(self, broker_id: int | None, configs: Mapping[str, str]) -> None:
        """Write and publish a broker's dynamic configuration; with None the cluster-wide default."""
        await self._put(znodes.broker_config_path(broker_id), configs)
        self._context.image.put_broker_config(broker_id, configs)
        self._context.image.publish()

    async def _put(self, path: str, configs: Mapping[str, str]) -> None:
        context = self._context
        await context.change(await config_operations(context.store, path, configs, context.now_ms()))
