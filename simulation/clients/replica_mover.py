"""An administrator that moves replicas between the log directories of their brokers (KIP-113).

Requests go to the broker whose replica they name. A move to the directory in which the replica is ends its move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestAlterReplicaLogDir,
    AlterReplicaLogDirsRequestAlterReplicaLogDirTopic,
)
from odradek.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.protocol.schema import Message
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import Versions
from odradek.simulation.history import History, Partition, name_of

Address = tuple[str, int]

_PERMITTED: Final = frozenset({
    ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
})  # fmt: skip
_DESCRIPTION_SHARE: Final = 0.2


class ReplicaMover:
    """Works until the world ends. `directories` are the log directories of each broker."""

    def __init__(
        self,
        world: World,
        history: History,
        random: Random,
        partitions: Sequence[Partition],
        directories: Mapping[Address, Sequence[str]],
    ) -> None:
        self.name = "mover"
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._directories = directories
        self._versions = Versions(random)
        self._pause_s = random.choice((0.05, 0.2, 1.0))

    async def run(self) -> None:
        """Work until the world ends."""
        while not self._world.is_ending:
            await self._world.sleep(self._random.expovariate(1 / self._pause_s))
            address = self._random.choice(list(self._directories))
            request = self._describe if self._random.random() < _DESCRIPTION_SHARE else self._move
            try:
                await request(address)
            except ConnectionLost:
                continue

    async def _request(self, address: Address, message: Message) -> Any:
        connection = await self._world.connect(address)
        answer = await connection.request(message, self._versions.of(message), client_id=self.name)
        connection.close()
        return answer

    async def _move(self, address: Address) -> None:
        random = self._random
        dirs = [
            AlterReplicaLogDirsRequestAlterReplicaLogDir(
                path=random.choice(self._directories[address]),
                topics=[AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name=topic, partitions=[index])],
            )
            for topic, index in random.sample(self._partitions, min(random.randint(1, 4), len(self._partitions)))
        ]
        answer: Any = await self._request(address, AlterReplicaLogDirsRequest(dirs=dirs))
        codes = {
            (topic.topic_name, row.partition_index): ErrorCode(row.error_code)
            for topic in answer.results
            for row in topic.partitions
        }
        for one in dirs:
            partition = one.topics[0].name, one.topics[0].partitions[0]
            code = codes.get(partition)
            result = "no result" if code is None else code.name
            text = f"move {name_of(partition)} of {address[0]} to {one.path}: {result}"
            if code in _PERMITTED:
                self._history.note(self.name, text)
            else:
                self._history.note_odd(self.name, text)

    async def _describe(self, address: Address) -> None:
        """Report a partition with two current or two future replicas in the directories of a broker."""
        answer: Any = await self._request(address, DescribeLogDirsRequest(topics=None))
        found: dict[tuple[Partition, bool], str] = {}
        for directory in answer.results:
            for topic in directory.topics:
                for row in topic.partitions:
                    partition = topic.name, row.partition_index
                    other = found.setdefault((partition, row.is_future_key), directory.log_dir)
                    if other != directory.log_dir:
                        what = f"{name_of(partition)} of {address[0]} is in {other} and {directory.log_dir}"
                        self._history.note_odd(self.name, what)
