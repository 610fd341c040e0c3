"""Brokers of one cluster with fake control planes, for tests of the controller."""

import random

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrResponseLeaderAndIsrPartitionError,
    LeaderAndIsrResponseLeaderAndIsrTopicError,
)
from odradek.protocol.messages.stop_replica import (
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaResponseStopReplicaPartitionError,
)
from odradek.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.propagation.propagation import Propagation
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.image import NO_LEADER, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore
from odradek.replication.metadata.store import run_now
from odradek.replication.metadata.znodes import Restart
from odradek.replication.remote import BrokerUnavailableError
from odradek.replication.tests.support import Step, SteppedExecutor, broker

LISTENER = "PLAINTEXT"


class ClusterExecutor(SteppedExecutor):
    """Runs the coroutines of all brokers; with `chooser` in random order."""

    def __init__(self, chooser=None):
        super().__init__()
        self.chooser = chooser
        self.sleeping = []

    async def delay(self, ms):
        """Wait for the next `wake`."""
        waiter = self.waiter()
        self.sleeping.append(waiter)
        await waiter

    def wake(self):
        """End all delays."""
        sleeping, self.sleeping = self.sleeping, []
        for waiter in sleeping:
            waiter.callback(None)

    async def pause(self):
        if self.chooser is not None and self.chooser.random() < 0.1:
            await Step()

    def step(self):
        """Run one step of one coroutine; return False if none is ready."""
        if not self.ready:
            return False
        if self.chooser is not None:
            self.ready.rotate(self.chooser.randrange(len(self.ready)))
        self._resume(self.ready.popleft())
        return True

    def finish(self):
        while self.step():
            pass


class SteppedStore(MemoryMetadataStore):
    """A session whose operations suspend before and after their execution."""

    async def get(self, path, watch=None):
        await Step()
        return await super().get(path, watch)

    async def get_many(self, paths, watch=None):
        nodes = []
        for path in paths:
            await Step()
            nodes += await super().get_many([path], watch)
        return nodes

    async def set(self, path, data, version=-1):
        await Step()
        result = await super().set(path, data, version)
        await Step()
        return result

    async def delete(self, path, version=-1):
        await Step()
        await super().delete(path, version)
        await Step()

    async def create(self, path, data=None, *, ephemeral=False, sequential=False):
        await Step()
        result = await super().create(path, data, ephemeral=ephemeral, sequential=sequential)
        await Step()
        return result

    async def exists(self, path, watch=None):
        await Step()
        return await super().exists(path, watch)

    async def get_children(self, path, watch=None):
        await Step()
        return await super().get_children(path, watch)

    async def transaction(self, operations):
        await Step()
        results = await super().transaction(operations)
        await Step()
        return results


class FakeBroker:
    """A broker's control plane: it checks epochs, applies requests and records them.

    roles: (leader, leader epoch, ISR, replicas) by topic and partition, from LeaderAndIsr
    cache: the same from UpdateMetadata; live: live brokers
    """

    def __init__(self, broker_id):
        self.broker_id = broker_id
        self.requests = []
        self.refusals = []
        self.failed = set()
        self.on_metadata = lambda: None
        self.is_up = True
        self.begin()

    def begin(self):
        """Start again, without state."""
        self.epoch = -1
        self.controller_epoch = 0
        self.topic_ids = {}
        self.role_ids = {}
        self.roles, self.cache, self.live, self.deleted = {}, {}, set(), set()

    def refuse(self, request):
        if request.controller_epoch < self.controller_epoch:
            self.refusals.append(request)
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.broker_epoch != -1 and request.broker_epoch < self.epoch:
            self.refusals.append(request)
            return ErrorCode.STALE_BROKER_EPOCH
        self.controller_epoch = request.controller_epoch
        return ErrorCode.NONE

    async def leader_and_isr(self, request):
        self.requests.append(request)
        error = self.refuse(request)
        topics = []
        for topic in request.topic_states if not error else ():
            errors = []
            is_inconsistent = not self.take_topic_id(topic)
            for row in topic.partition_states:
                key = (topic.topic_name, row.partition_index)
                code = ErrorCode.NONE
                if is_inconsistent:
                    code = ErrorCode.INCONSISTENT_TOPIC_ID
                elif key in self.failed:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                elif key in self.roles and self.roles[key][1] >= row.leader_epoch:
                    code = ErrorCode.STALE_CONTROLLER_EPOCH
                else:
                    assert self.broker_id in row.replicas
                    self.roles[key] = (row.leader, row.leader_epoch, tuple(row.isr), tuple(row.replicas))
                    self.deleted.discard(key)
                errors.append(
                    LeaderAndIsrResponseLeaderAndIsrPartitionError(partition_index=row.partition_index, error_code=code)
                )
            topics.append(
                LeaderAndIsrResponseLeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)
            )
        return LeaderAndIsrResponse(error_code=error, topics=topics)

    def take_topic_id(self, topic):
        """Replace the roles in a topic that was deleted; return False if the cache has that topic."""
        name = topic.topic_name
        known = self.role_ids.get(name)
        if known not in (None, topic.topic_id):
            if self.topic_ids.get(name) == known and any(key[0] == name for key in self.cache):
                return False
            self.roles = {key: row for key, row in self.roles.items() if key[0] != name}
        self.role_ids[name] = topic.topic_id
        return True

    async def update_metadata(self, request):
        self.requests.append(request)
        error = self.refuse(request)
        if not error:
            self.live = {row.id for row in request.live_brokers}
            for topic in request.topic_states:
                if self.topic_ids.get(topic.topic_name) != topic.topic_id:
                    self.topic_ids[topic.topic_name] = topic.topic_id
                    self.cache = {key: row for key, row in self.cache.items() if key[0] != topic.topic_name}
                for row in topic.partition_states:
                    key = (topic.topic_name, row.partition_index)
                    if row.leader == -2:
                        self.cache.pop(key, None)
                    else:
                        self.cache[key] = (row.leader, row.leader_epoch, tuple(row.isr), tuple(row.replicas))
            self.on_metadata()
        return UpdateMetadataResponse(error_code=error)

    async def stop_replica(self, request):
        self.requests.append(request)
        error = self.refuse(request)
        rows = []
        for topic in request.topic_states if not error else ():
            for row in topic.partition_states:
                key = (topic.topic_name, row.partition_index)
                code = ErrorCode.NONE
                if key in self.failed and row.delete_partition:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                elif key in self.roles and -1 < row.leader_epoch < self.roles[key][1]:
                    code = ErrorCode.FENCED_LEADER_EPOCH
                elif row.delete_partition:
                    self.roles.pop(key, None)
                    self.deleted.add(key)
                    if not any(role[0] == topic.topic_name for role in self.roles):
                        self.role_ids.pop(topic.topic_name, None)
                rows.append(
                    StopReplicaResponseStopReplicaPartitionError(
                        topic_name=topic.topic_name, partition_index=row.partition_index, error_code=code
                    )
                )
        return StopReplicaResponse(error_code=error, partition_errors=rows)

    async def handle(self, request):
        match request:
            case LeaderAndIsrRequest():
                return await self.leader_and_isr(request)
            case UpdateMetadataRequest():
                return await self.update_metadata(request)
            case StopReplicaRequest():
                return await self.stop_replica(request)
        raise AssertionError(request)

    def take(self):
        """Return the recorded requests, shortened by `describe`, and forget them."""
        requests, self.requests = self.requests, []
        return [describe(request) for request in requests]


def describe(request):
    """Return a request as its name and its rows."""
    match request:
        case LeaderAndIsrRequest():
            return "LAI", {
                f"{topic.topic_name}-{row.partition_index}": (
                    row.leader, row.leader_epoch, row.isr, *(["new"] if row.is_new else []),
                )
                for topic in request.topic_states
                for row in topic.partition_states
            }  # fmt: skip
        case UpdateMetadataRequest():
            return "UM", [row.id for row in request.live_brokers], {
                f"{topic.topic_name}-{row.partition_index}": (
                    row.leader, row.leader_epoch, row.isr, *([row.offline_replicas] if row.offline_replicas else []),
                )
                for topic in request.topic_states
                for row in topic.partition_states
            }  # fmt: skip
    return "SR", {
        f"{topic.topic_name}-{row.partition_index}": (row.leader_epoch, row.delete_partition)
        for topic in request.topic_states
        for row in topic.partition_states
    }


class FakeChannel:
    def __init__(self, network, target, client_id):
        self.network, self.target, self.client_id = network, target, client_id
        self.is_closed = False

    async def send(self, request, response_type, version=None):
        await Step()
        fake = self.network.fakes[self.target.broker_id]
        chooser = self.network.executor.chooser
        is_lost = chooser is not None and chooser.random() < 0.05
        # A broker accepts no connection before it has registered.
        is_starting = fake.epoch < 0
        if self.is_closed or not fake.is_up or is_starting or (is_lost and chooser.random() < 0.5):
            raise BrokerUnavailableError
        response = await fake.handle(request)
        await Step()
        if self.is_closed or is_lost:
            raise BrokerUnavailableError
        assert isinstance(response, response_type)
        return response

    def close(self):
        self.is_closed = True


class World:
    """A store and its brokers, of which some are up."""

    def __init__(self, broker_ids=(1, 2, 3), seed=None):
        self.chooser = random.Random(seed) if seed is not None else None
        self.executor = ClusterExecutor(self.chooser)
        self.monotonic_ms = 0
        self.server = MemoryMetadataServer()
        self.observer = self.server.connect()
        self.fakes = {}
        self.nodes = {}
        self.channels = []
        run_now(prepare_store(self.server.connect(), "a-cluster"))
        for broker_id in broker_ids:
            self.start(broker_id)

    @property
    def network(self):
        return self

    def open(self, target, *, client_id, timeout_ms):
        channel = FakeChannel(self, target, client_id)
        self.channels.append(channel)
        return channel

    def start(self, broker_id, run=True, restart=Restart.LOSSY):
        """Start a broker process."""
        fake = self.fakes.setdefault(broker_id, FakeBroker(broker_id))
        node = self.nodes[broker_id] = Node(self, fake)
        node.join(restart)
        if run:
            self.executor.finish()
        return node

    def crash(self, broker_id):
        """End a process; its session expires."""
        node = self.nodes.pop(broker_id)
        node.is_crashed = True
        node.fake.is_up = False
        node.controller.stop()
        self.server.expire(node.store)

    @property
    def active(self):
        """The node that is the controller."""
        [node] = [node for node in self.nodes.values() if node.controller.is_active]
        return node

    def take(self):
        """Return the requests since the last call, by broker."""
        return {broker_id: fake.take() for broker_id, fake in sorted(self.fakes.items()) if fake.requests}

    def epoch_of(self, broker_id):
        """Return the epoch of a registered broker."""
        stat = run_now(self.server.connect().exists(f"/brokers/ids/{broker_id}"))
        return stat.created_id

    def run(self, coroutine):
        """Run a coroutine, and all that it causes, to the end; return its result."""
        task = self.executor.start(coroutine)
        self.executor.finish()
        return task.outcome()


class Node:
    """A broker process: its session, its controller and its fake control plane."""

    def __init__(self, world, fake):
        self.world, self.fake = world, fake
        self.is_crashed = False
        self.start = None
        fake.begin()
        fake.is_up = True
        self.store = (SteppedStore if world.chooser else MemoryMetadataStore)(
            world.server, world.server.new_session_id()
        )
        self.cache = ClusterMetadata()
        self.propagation = Propagation(
            fake.broker_id,
            self.cache,
            fake,
            world,
            world.executor.delay,
            inter_broker_listener=LISTENER,
            timeout_ms=30_000,
        )
        self.controller = Controller(
            self.store,
            self.propagation,
            fake.broker_id,
            lambda: 0,
            lambda: world.monotonic_ms,
            self.propagation,
            random.Random(fake.broker_id),
        )
        self.controller.reassignments.stop_replicas = self.propagation.delete_replicas
        self.controller.run_on(world.executor)
        fake.on_metadata = self.update_cache

    def update_cache(self):
        """Bring the metadata cache up to date with the fake broker's."""
        topics = {}
        for (name, index), (leader, epoch, isr, replicas) in sorted(self.fake.cache.items()):
            partitions = topics.setdefault(name, [])
            # Partitions between that no broker has led yet.
            partitions += [PartitionMetadata(NO_LEADER, -1, (), ())] * (index - len(partitions))
            partitions.append(PartitionMetadata(leader, epoch, replicas, isr))
        for name in self.cache.topics.keys() - topics.keys():
            self.cache.remove_topic(name)
        for name, partitions in topics.items():
            self.cache.put_topic(TopicMetadata(name, self.fake.topic_ids[name], tuple(partitions)))
        for broker_id in self.fake.live:
            self.cache.put_broker(broker(broker_id))
        self.cache.publish()

    def join(self, restart=Restart.LOSSY):
        """Register and take part in the election."""
        register = self.controller._registration.register

        async def registered(metadata, restart=Restart.LOSSY):
            await register(metadata, restart)
            self.fake.epoch = self.world.epoch_of(self.fake.broker_id)

        self.controller._registration.register = registered
        self.start = self.world.executor.start(self.controller.start(broker(self.fake.broker_id), restart=restart))

    def rejoin(self):
        """Begin a new session after the last one expired."""
        return self.world.executor.start(self.controller.rejoin())
