"""Changes of configurations by the controller: the store first, then the controller's image, then brokers."""

from collections.abc import Mapping
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.context import ControllerContext
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import Create, Delete, Operation, SetData

CONFIG_CHANGE_KEPT_MS: Final = 15 * 60_000

MAX_REMOVED_NOTICES: Final = 50
"""Most old notices that one change removes. Each change adds one notice, so their number falls."""


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
        data = znodes.encode_config(dict(configs))
        exists = await self._context.store.exists(path) is not None
        operations: list[Operation] = [SetData(path, data) if exists else Create(path, data)]
        if self._context.store.is_shared:
            operations += await self._notices(path)
        await self._context.change(operations)

    async def _notices(self, path: str) -> list[Operation]:
        """Return a notice of the change for other brokers, and the removal of some old ones."""
        store = self._context.store
        change = znodes.encode_config_change(path.removeprefix("/config/"))
        operations: list[Operation] = [
            Create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True)
        ]
        for name in (await store.get_children(znodes.CONFIG_CHANGES))[:MAX_REMOVED_NOTICES]:
            old = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await store.exists(old)
            if stat is not None and stat.created_ms > self._context.now_ms() - CONFIG_CHANGE_KEPT_MS:
                break
            operations.append(Delete(old))
        return operations
