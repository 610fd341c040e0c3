"""The clients of a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, cast

from odradek.simulation.api import Client
from odradek.simulation.clients.cluster_operator import OPERATED_TOPICS, ClusterOperator
from odradek.simulation.clients.config_changer import ConfigChanger
from odradek.simulation.clients.consumers.assigned import AssignedConsumer
from odradek.simulation.clients.consumers.brief_offsets import BriefCommitter
from odradek.simulation.clients.consumers.copier import Copier
from odradek.simulation.clients.consumers.group_consumer import GroupConsumer
from odradek.simulation.clients.consumers.scanner import Scanner
from odradek.simulation.clients.group_admin import GroupAdmin
from odradek.simulation.clients.producers.batches import draw_wrong_packing
from odradek.simulation.clients.producers.flood import Flood
from odradek.simulation.clients.producers.hostile import CONTRADICTIONS, HostileProducer
from odradek.simulation.clients.producers.idempotent import IdempotentProducer
from odradek.simulation.clients.producers.plain import PlainProducer
from odradek.simulation.clients.producers.transaction_session import Flow
from odradek.simulation.clients.producers.transactional import TransactionalProducer
from odradek.simulation.clients.replica_mover import ReplicaMover
from odradek.simulation.clients.topic_owner import TopicOwner
from odradek.simulation.clients.unclean_elector import UncleanElector
from odradek.simulation.history import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Copy, History, Isolation, Partition
from odradek.simulation.scenario import GROUP_PARTITIONS, RETENTION_MS, TRANSACTION_PARTITIONS

if TYPE_CHECKING:
    from odradek.simulation import api
    from odradek.simulation.scenario import Scenario
    from odradek.simulation.world import World

_SELDOM_S: Final = (0.05, 0.2)
_OPERATED_SHARE: Final = 0.4
"""Share of the seeds with several brokers in which replicas are moved."""
_CONFIGURED_SHARE: Final = 0.2
"""Share of the seeds with several brokers in which configurations are changed."""
_RARE_SHARE: Final = 0.2
"""Share of the seeds that have a rare kind of client; those kinds have separate random numbers."""


def make_clients(world: World, history: History, scenario: Scenario) -> Sequence[Client]:
    """Draw the clients of a seed: some of each kind, on the scenario's topics."""
    return list(_ClientDraw(world, history, scenario).all())


class _ClientDraw:
    """Draws the clients."""

    def __init__(self, world: World, history: History, scenario: Scenario) -> None:
        self._world = cast("api.World", world)
        self._broker_ids = range(1, len(world.brokers) + 1)
        self._directories = {process.address: process.directories for process in world.brokers}
        self._rule = world.intact
        self._history = history
        self._scenario = scenario
        self._random = world.random
        self._seed = world.seed

    def all(self) -> Iterator[Client]:
        """Iterate over all clients."""
        yield from self._owners()
        yield from self._producers()
        yield from self._consumers()
        yield from self._groups()
        yield from self._administrators()
        yield from self._copiers()
        yield from self._wrong_headers()
        yield from self._floods()
        yield from self._operators()
        yield from self._movers()
        yield from self._config_changers()
        yield from self._clients_of_unclean_topics()

    def _owners(self) -> Iterator[Client]:
        factor = self._scenario.replication_factor
        for topic in self._scenario.owned:
            yield TopicOwner(
                self._world, self._history, topic.name, self._chance(), topic.configs, RETENTION_MS,
                range(min(2, factor), factor + 1),
            )  # fmt: skip

    def _producers(self) -> Iterator[Client]:
        world, history, random = self._world, self._history, self._random
        plain = self._partitions()
        keeps_all = all(topic.keeps_all for topic in self._scenario.topics if (topic.name, 0) in plain)
        times = "any" if keeps_all else "fresh"
        for number in range(random.choice((0, 1, 2))):
            yield PlainProducer(world, history, f"plain{number}", self._chance(), plain, times=times)
        for number in range(random.choice((0, 1, 2))):
            yield IdempotentProducer(world, history, f"idem{number}", self._chance(), plain)
        for number in range(random.choice((0, 1, 2, 3))):
            yield TransactionalProducer(world, history, f"txn{number}", self._chance(), plain, self._flow())
        by_client = self._with_client_times()
        if random.random() < 0.4 and by_client:
            yield HostileProducer(world, history, "hostile", self._chance(), by_client)
        compacted = self._partitions(compacted=True)
        if compacted and random.random() < 0.5:
            yield IdempotentProducer(world, history, "keyed", self._chance(), compacted, are_keyed=True)
        if compacted and random.random() < 0.5:
            yield TransactionalProducer(
                world, history, "ledger", self._chance(), compacted, self._flow(), are_keyed=True
            )
        if compacted and random.random() < 0.3:
            yield PlainProducer(
                world, history, "keys", self._chance(), compacted, are_keyed=True, times="any", pauses_s=_SELDOM_S
            )
        aged = self._partitions(aged=True)
        if aged:
            yield PlainProducer(world, history, "aged", self._chance(), aged, times="aged", pauses_s=_SELDOM_S)

    def _consumers(self) -> Iterator[Client]:
        world, history, random = self._world, self._history, self._random
        everything = [*self._partitions(), *self._partitions(compacted=True), *self._partitions(aged=True)]
        for number in range(random.choice((0, 1, 1, 2))):
            yield AssignedConsumer(
                world, history, f"reader{number}", self._chance(), everything, Isolation.READ_UNCOMMITTED
            )
        for number in range(random.choice((0, 1, 1, 2))):
            yield AssignedConsumer(
                world, history, f"stable{number}", self._chance(), everything, Isolation.READ_COMMITTED
            )

    def _groups(self) -> Iterator[Client]:
        world, history, random = self._world, self._history, self._random
        plain = self._partitions()
        for group in range(random.choice((0, 1, 1, 2))):
            isolation = random.choice(list(Isolation))
            for number in range(random.choice((1, 2, 3))):
                name = f"group{group}-{number}"
                yield GroupConsumer(world, history, name, self._chance(), f"group{group}", plain, isolation)

    def _administrators(self) -> Iterator[Client]:
        world, history, random = self._world, self._history, self._random
        if random.random() < 0.3:
            brief = BriefCommitter(world, history, "brief", self._chance(), random.choice(self._partitions()))
            if self._scenario.replication_factor == 1:
                yield brief
        if random.random() < 0.3:
            yield GroupAdmin(world, history, "group-admin", self._chance(), ("group0", "group1"))

    def _copiers(self) -> Iterator[Client]:
        random = self._random
        partitions = self._partitions()
        target = partitions[-1][0]
        inputs = tuple(partition for partition in partitions if partition[0] != target)
        outputs = tuple(partition for partition in partitions if partition[0] == target)
        job = Copy("copy", inputs, outputs)
        number_of_copiers = random.choice((0, 1, 2))
        if number_of_copiers:
            self._history.copies.append(job)
        for number in range(number_of_copiers):
            yield Copier(self._world, self._history, f"copier{number}", self._chance(), job, self._flow())

    def _wrong_headers(self) -> Iterator[Client]:
        """Draw producers with contradictory timestamps and wrong batch headers."""
        random = Random(f"liars {self._seed}")
        if random.random() >= _RARE_SHARE:
            return
        by_client = self._with_client_times()
        plain = self._partitions()
        keeps_all = all(topic.keeps_all for topic in self._scenario.topics if (topic.name, 0) in plain)
        for number in range(random.choice((1, 2))):
            yield PlainProducer(
                self._world, self._history, f"odd{number}", Random(random.getrandbits(64)), plain,
                times="odd" if keeps_all else "odd but new", packing=draw_wrong_packing(random),
            )  # fmt: skip
        if not by_client:
            return
        yield HostileProducer(
            self._world, self._history, "liar", Random(random.getrandbits(64)), by_client, kinds=CONTRADICTIONS
        )

    def _floods(self) -> Iterator[Client]:
        random = Random(f"floods {self._seed}")
        if random.random() < _RARE_SHARE and self._scenario.replication_factor == 1:
            for number in range(random.choice((1, 2))):
                chance = Random(random.getrandbits(64))
                yield Flood(self._world, self._history, f"flood{number}", chance, self._partitions())

    def _operators(self) -> Iterator[Client]:
        factor = self._scenario.replication_factor
        random = Random(f"operator {self._seed}")
        if factor > 1 and random.random() < _OPERATED_SHARE:
            yield ClusterOperator(
                self._world, self._history, random, self._partitions(), self._movable(), self._broker_ids, factor,
                self._rule,
            )  # fmt: skip

    def _clients_of_unclean_topics(self) -> Iterator[Client]:
        world, history, random = self._world, self._history, Random(f"unclean {self._seed}")
        partitions = self._partitions(unclean=True)
        if not partitions:
            return
        yield PlainProducer(world, history, "careless", Random(random.getrandbits(64)), partitions)
        if random.random() < 0.7:
            yield IdempotentProducer(world, history, "careless-idem", Random(random.getrandbits(64)), partitions)
        yield Scanner(world, history, Random(random.getrandbits(64)), partitions)
        yield UncleanElector(world, history, random, partitions)

    def _movers(self) -> Iterator[Client]:
        random = Random(f"mover {self._seed}")
        has_several = all(len(paths) > 1 for paths in self._directories.values())
        if self._scenario.replication_factor > 1 and has_several:
            partitions = [*self._movable(), *self._partitions(unclean=True)]
            yield ReplicaMover(self._world, self._history, random, partitions, self._directories)

    def _config_changers(self) -> Iterator[Client]:
        random = Random(f"configs {self._seed}")
        if self._scenario.replication_factor > 1 and random.random() < _CONFIGURED_SHARE:
            topics = [one.name for one in self._scenario.topics if not one.is_compacted and not one.is_unclean]
            compacted = [one.name for one in self._scenario.topics if one.is_compacted]
            may_flush_late = "lose_all_power" not in self._scenario.faults.weights
            yield ConfigChanger(
                self._world, self._history, random, topics, [*compacted, OFFSETS_TOPIC, TRANSACTIONS_TOPIC],
                dict(zip(map(str, self._broker_ids), self._directories, strict=True)), may_flush_late=may_flush_late,
            )  # fmt: skip

    def _movable(self) -> list[Partition]:
        """Return the partitions without unclean elections; some of them may not exist."""
        partitions = [*self._partitions(), *self._partitions(compacted=True)]
        partitions += ((OFFSETS_TOPIC, index) for index in range(GROUP_PARTITIONS))
        partitions += ((TRANSACTIONS_TOPIC, index) for index in range(TRANSACTION_PARTITIONS))
        partitions += ((topic, 0) for topic in (*OPERATED_TOPICS, *(one.name for one in self._scenario.owned)))
        return partitions

    def _flow(self) -> Flow:
        return Flow.V2 if self._scenario.transaction_version >= 2 and self._random.random() < 0.7 else Flow.V1

    def _chance(self) -> Random:
        """Return random numbers for one client, so that its draws do not affect the others."""
        return Random(self._random.getrandbits(64))

    def _with_client_times(self) -> list[Partition]:
        topics = self._scenario.topics
        return [(topic.name, 0) for topic in topics if not topic.has_append_time and not topic.is_unclean]

    def _partitions(
        self, *, compacted: bool = False, aged: bool = False, unclean: bool = False
    ) -> list[Partition]:
        return [
            (topic.name, index)
            for topic in self._scenario.topics
            if topic.is_compacted == compacted and topic.is_aged == aged and topic.is_unclean == unclean
            for index in range(topic.partitions)
        ]
