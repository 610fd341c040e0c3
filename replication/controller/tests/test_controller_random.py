"""Random failures of brokers, sessions and controllers at any await, with the invariants of section 13 of
`zookeeper-mode.md`: 3, 6, 8, 9, 12, 13 and 14.
"""

import os
import random
from contextlib import suppress

import pytest

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
)
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, TopicMetadata
from odradek.replication.metadata.loader import load_topic
from odradek.replication.metadata.store import MetadataStoreError, run_now
from odradek.replication.tests.cluster_support import World

FIRST_SEED = int(os.environ.get("ODRADEK_CONTROLLER_SEED", "1"))
SEEDS = int(os.environ.get("ODRADEK_CONTROLLER_SEEDS", "20"))
BROKERS = (1, 2, 3, 4)
STEPS = 60
EXPECTED = (KafkaError, MetadataStoreError)
"""Errors of a change that a lost session, another controller or a concurrent change prevents."""


class History:
    """All states of the store so far: the invariants that concern changes."""

    def __init__(self, world):
        self.world = world
        self.store = world.observer
        self.leaders = {}
        self.last = {}
        self.controllers = {}
        self.controller_epoch = 0

    def check(self):
        """Check the present state of the store against the earlier ones."""
        children, get, exists = self.store.get_children, self.store.get, self.store.exists
        if run_now(exists(znodes.CONTROLLER)):
            node = run_now(get(znodes.CONTROLLER))
            epoch = int(run_now(get(znodes.CONTROLLER_EPOCH)).data)
            owner = node.stat.created_id
            # 3: the controller epoch never falls and has one owner.
            assert epoch >= self.controller_epoch
            assert self.controllers.setdefault(epoch, owner) == owner
            self.controller_epoch = epoch
        for name in run_now(children(znodes.TOPICS)):
            topic = run_now(load_topic(self.store, name))
            for index, state in enumerate(topic.partitions):
                if state.leader != NO_LEADER or state.isr:
                    self._check_state((topic.topic_id, index), state)

    def _check_state(self, key, state):
        last = self.last.get(key)
        self.last[key] = state
        # 6: the ISR is a part of the replicas, and the leader of the ISR.
        assert state.isr
        assert set(state.isr) <= set(state.replicas)
        assert state.leader in (NO_LEADER, *state.isr)
        # 9: unclean election is disabled here.
        assert state.leader_recovery_state == 0
        if last == state:
            return
        # 8: a controller that another replaced writes nothing.
        assert state.controller_epoch == self.controller_epoch
        if last is None:
            return
        # 3: epochs never fall, and a leader epoch has one leader.
        assert state.leader_epoch >= last.leader_epoch
        assert state.partition_epoch >= last.partition_epoch
        assert state.controller_epoch >= last.controller_epoch
        if state.leader != NO_LEADER:
            assert self.leaders.setdefault((*key, state.leader_epoch), state.leader) == state.leader
        # 9: a new leader is from the last ISR, unless steps were missed.
        if state.partition_epoch == last.partition_epoch + 1 and state.leader not in (NO_LEADER, last.leader):
            assert state.leader in last.isr


class Run:
    """A cluster that is disturbed by one seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.world = World(broker_ids=(), seed=seed)
        self.history = History(self.world)
        self.topics = {}
        self.deleted = set()
        self.down = set(BROKERS)
        self.tasks = []
        for broker_id in BROKERS[:3]:
            self.start(broker_id)
        self.steps(2000)

    def start(self, broker_id):
        self.down.discard(broker_id)
        self.world.start(broker_id, run=False)
        self.world.fakes[broker_id].failed = set()

    def restart(self, broker_id):
        self.world.crash(broker_id)
        self.start(broker_id)
        self.steps(400_000)

    def steps(self, count):
        """Run some steps; check after each that something was written."""
        for _ in range(count):
            if not self.world.executor.step():
                if not self.world.executor.sleeping:
                    break
                self.world.executor.wake()
            self.history.check()

    def disturb(self):
        actions = [self.crash, self.expire, self.begin, self.create, self.create, self.alter, self.alter, self.alter]
        actions += [self.delete, self.shut_down, self.lose_requests, self.drop_controller]
        actions += [self.refuse_broker, self.refuse_controller, self.reassign, self.grow, self.rebalance]
        actions += [self.fail_replicas, self.mark]
        self.random.choice(actions)()
        self.steps(self.random.choice((0, 1, 5, 20, 100, 400)))

    def crash(self):
        if len(self.world.nodes) > 1:
            broker_id = self.random.choice(sorted(self.world.nodes))
            self.down.add(broker_id)
            self.world.crash(broker_id)

    def begin(self):
        if self.down:
            self.start(self.random.choice(sorted(self.down)))

    def expire(self):
        if self.world.nodes:
            node = self.random.choice([self.world.nodes[key] for key in sorted(self.world.nodes)])
            if not node.start.is_over:
                # A broker whose session ends before it has started exits.
                self.down.add(node.fake.broker_id)
                self.world.crash(node.fake.broker_id)
            elif not node.store._is_over:
                self.world.server.expire(node.store)
                self.rejoin(node)

    def rejoin(self, node):
        async def work():
            while not node.is_crashed and node.store._is_over:
                try:
                    await node.controller.rejoin()
                except EXPECTED:
                    await self.world.executor.delay(100)

        self.tasks.append(self.world.executor.start(work()))

    def drop_controller(self):
        """An operator deletes the controller's node."""
        if run_now(self.world.observer.exists(znodes.CONTROLLER)):
            run_now(self.world.observer.delete(znodes.CONTROLLER))

    def lose_requests(self):
        if self.world.nodes:
            fake = self.world.fakes[self.random.choice(sorted(self.world.nodes))]
            fake.is_up = not fake.is_up

    def active(self):
        active = [node for node in self.world.nodes.values() if node.controller.is_active]
        return self.random.choice(active) if active else None

    def create(self):
        node = self.active()
        if node is None or not node.controller.image.brokers or len(self.topics) > 30:
            return
        name = self.random.choice("abcdef")
        topic_id = self.random.randbytes(16)
        live = sorted(node.controller.image.brokers)
        rows = [tuple(self.random.sample(live, self.random.randint(1, len(live)))) for _ in range(2)]

        async def work():
            controller = node.controller

            async def plan():
                controller.check_active()
                if name in controller.image.topics or not set(live) <= controller.image.brokers.keys():
                    return {}
                partitions = tuple(new_partition(row, controller.image.brokers, controller.epoch) for row in rows)
                return await controller.changes.create([NewTopic(TopicMetadata(name, topic_id, partitions), {})])

            await controller.request("create", plan)

        self.topics[topic_id] = name
        self.ignore_failures(work())

    def delete(self):
        node = self.active()
        if node is not None and node.controller.image.topics:
            names = [self.random.choice(sorted(node.controller.image.topics))]
            self.ignore_failures(node.controller.delete_topics(names))

    def ignore_failures(self, coroutine):
        async def work():
            with suppress(*EXPECTED):
                await coroutine

        self.tasks.append(self.world.executor.start(work()))

    def alter(self):
        """A leader requests another ISR, based on the last state it received, sometimes from an old controller."""
        leaders = [
            (fake, name, index)
            for fake in self.world.fakes.values()
            for (name, index), role in fake.roles.items()
            if role[0] == fake.broker_id
        ]
        if not leaders or not self.world.nodes:
            return
        fake, name, index = self.random.choice(sorted(leaders, key=lambda one: (one[0].broker_id, *one[1:])))
        _, leader_epoch, _, replicas = fake.roles[name, index]
        node = self.active() or self.world.nodes[min(self.world.nodes)]
        topic = node.controller.image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return
        others = [replica for replica in replicas if replica != fake.broker_id and self.random.random() < 0.7]
        partition_epoch = topic.partitions[index].partition_epoch - self.random.choice((0, 0, 0, 1))
        isr = (fake.broker_id, *others)
        self.request_isr(node.controller, fake, topic, index, isr, leader_epoch, partition_epoch)

    def request_isr(self, controller, leader, topic, index, isr, leader_epoch, partition_epoch):
        row = AlterPartitionRequestPartitionData(
            partition_index=index,
            leader_epoch=leader_epoch,
            new_isr=[],
            new_isr_with_epochs=[AlterPartitionRequestBrokerState(broker_id=replica) for replica in isr],
            leader_recovery_state=0,
            partition_epoch=partition_epoch,
        )
        topics = [AlterPartitionRequestTopicData(topic_id=topic.topic_id, partitions=[row])]
        request = AlterPartitionRequest(broker_id=leader.broker_id, broker_epoch=leader.epoch, topics=topics)
        self.ignore_failures(controller.alter_partition(request))

    def shut_down(self):
        node = self.active()
        if node is not None and self.random.random() < 0.5:
            broker_id = self.random.choice(sorted(self.world.nodes))
            request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=-1)
            self.ignore_failures(node.controller.controlled_shutdown(request))

    def refuse_broker(self):
        """The address of a broker refuses the controller, although the broker may be alive."""
        node = self.active()
        if node is not None and node.controller.image.brokers:
            broker = self.random.choice([one for _, one in sorted(node.controller.image.brokers.items())])
            if broker.broker_id != node.controller.broker_id:
                node.controller.on_broker_refused(broker)

    def refuse_controller(self):
        """The address of the controller refuses another broker, although the controller may be alive."""
        nodes = [node for _, node in sorted(self.world.nodes.items())]
        if nodes:
            node = self.random.choice(nodes)
            node.controller._may_remove = True
            node.controller.on_controller_refused(node.controller.image.controller_id)

    def reassign(self):
        node = self.active()
        if node is None or not node.controller.image.topics or not node.controller.image.brokers:
            return
        name = self.random.choice(sorted(node.controller.image.topics))
        live = sorted(node.controller.image.brokers)
        count = len(node.controller.image.topics[name].partitions)
        target = self.random.sample(live, self.random.randint(1, len(live))) if self.random.random() < 0.8 else None
        index = self.random.randrange(count)

        async def plan():
            controller = node.controller
            controller.check_active()
            partition = controller.image.partition(name, index)
            if partition is not None and set(target or ()) <= controller.image.brokers.keys():
                await controller.reassignments.begin(name, {index: target})

        self.ignore_failures(node.controller.request("reassign", plan))

    def grow(self):
        node = self.active()
        if node is None or not node.controller.image.topics or not node.controller.image.brokers:
            return
        name = self.random.choice(sorted(node.controller.image.topics))
        live = sorted(node.controller.image.brokers)
        row = tuple(self.random.sample(live, self.random.randint(1, len(live))))

        async def plan():
            controller = node.controller
            controller.check_active()
            topic = controller.image.topics.get(name)
            if topic is None or len(topic.partitions) > 4 or not set(row) <= controller.image.brokers.keys():
                return
            added = new_partition(row, controller.context.staying_brokers, controller.epoch)
            grown = topic._replace(partitions=(*topic.partitions, added))
            await controller.changes.add_partitions(grown, len(topic.partitions))

        self.ignore_failures(node.controller.request("grow", plan))

    def fail_replicas(self):
        """A log directory of a broker fails, which the controller notices."""
        node = self.active()
        if node is not None:
            fake = self.world.fakes[self.random.choice(sorted(self.world.nodes))]
            fake.failed |= {key for key in sorted(fake.roles) if self.random.random() < 0.3}
            node.propagation.resend_roles(fake.broker_id)

    def mark(self):
        """Another tool requests the deletion of a topic."""
        names = run_now(self.world.observer.get_children(znodes.TOPICS))
        if names and self.random.random() < 0.3:
            with suppress(MetadataStoreError):
                run_now(self.world.observer.create(znodes.deletion_path(self.random.choice(names))))

    def rebalance(self):
        node = self.active()
        if node is not None:
            self.ignore_failures(node.controller.rebalance_leaders(0))

    # End

    def check_quiet(self):
        """13: when nothing more happens, partitions with a live member of the ISR have a leader, and ISRs are live."""
        while self.world.executor.step():
            self.history.check()
        store = self.world.observer
        active = [node.controller for node in self.world.nodes.values() if node.controller.is_active]
        live = {int(name) for name in run_now(store.get_children(znodes.BROKER_IDS))}
        for controller in active:
            assert controller.image.brokers.keys() == live
            leaving = controller.context.shutting_down
            for topic in controller.image.topics.values():
                for index, state in enumerate(run_now(load_topic(store, topic.name)).partitions):
                    online = live.difference(topic.partitions[index].offline)
                    assert set(state.isr) <= online or online.isdisjoint(state.isr)
                    assert state.leader in online or (online - leaving).isdisjoint(state.isr)

    def heal(self):
        """Start all brokers again, and let them answer, until nothing happens."""
        for broker_id in sorted(self.down):
            self.start(broker_id)
        for node in self.world.nodes.values():
            node.fake.is_up = True
        self.steps(400_000)
        for broker_id in sorted(self.world.nodes):
            if self.world.fakes[broker_id].failed:
                self.restart(broker_id)
        while stopping := sorted(self.find_active().context.shutting_down):
            # A broker that announced its stop becomes a leader only after another start.
            self.restart(stopping[0])
        self.finish_reassignments()
        assert not self.world.executor.ready
        assert not self.world.executor.sleeping

    def finish_reassignments(self):
        """Let all replicas of partitions that are being reassigned join their ISR; no fake broker does so by itself."""
        controller = self.find_active()
        while reassigned := [
            (topic, index)
            for topic in controller.image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if partition.adding or partition.removing
        ]:
            for topic, index in reassigned:
                self.join_isr(controller, topic, index)
            self.steps(400_000)

    def join_isr(self, controller, topic, index):
        partition = topic.partitions[index]
        assert partition.leader in partition.isr, (topic.name, index, partition)
        leader, epochs = self.world.fakes[partition.leader], (partition.leader_epoch, partition.partition_epoch)
        self.request_isr(controller, leader, topic, index, partition.replicas, *epochs)

    def find_active(self):
        [controller] = [node.controller for node in self.world.nodes.values() if node.controller.is_active]
        return controller

    def check_end(self):
        """13: each partition has a leader. 14: znode, LeaderAndIsr and UpdateMetadata agree."""
        controller = self.find_active()
        assert sorted(self.world.nodes) == sorted(controller.image.brokers) == list(BROKERS)
        store = self.world.observer
        names = run_now(store.get_children(znodes.TOPICS))
        assert run_now(store.get_children(znodes.DELETE_TOPICS)) == []
        assert sorted(controller.image.topics) == names
        expected_cache, expected_roles = {}, {broker_id: {} for broker_id in BROKERS}
        for name in names:
            topic = run_now(load_topic(store, name))
            assert topic == controller.image.topics[name]
            for index, state in enumerate(topic.partitions):
                assert state.leader in state.isr, (name, index, state)
                row = (state.leader, state.leader_epoch, state.isr, state.replicas)
                expected_cache[name, index] = row
                for replica in state.replicas:
                    expected_roles[replica][name, index] = row
        for broker_id, node in self.world.nodes.items():
            # As with Kafka, a broker whose session had ended, or whose controller failed, may miss the deletion of a
            # topic of which it has no replica.
            cache = {key: row for key, row in node.fake.cache.items() if key[0] in names}
            assert cache == expected_cache, broker_id
            assert node.fake.live == set(BROKERS)
            assert node.fake.epoch == controller.image.brokers[broker_id].epoch
            # AlterPartition changes an ISR without LeaderAndIsr.
            roles = {key: (row[0], row[1], row[3]) for key, row in node.fake.roles.items()}
            assert roles == {key: (row[0], row[1], row[3]) for key, row in expected_roles[broker_id].items()}, broker_id

    def check_errors(self):
        """A request ends with an expected error, or never if its broker crashed."""
        for task in self.tasks:
            if task.is_over:
                task.outcome()
            else:
                task.coroutine.close()

    def check_refusals(self):
        """8: what brokers refused had an old epoch, and changed nothing."""
        for fake in self.world.fakes.values():
            for request in fake.refusals:
                assert request.controller_epoch < fake.controller_epoch or request.broker_epoch < fake.epoch


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_failures_at_any_await_keep_the_invariants(seed):
    run = Run(seed)
    for _ in range(STEPS):
        run.disturb()
    run.check_quiet()
    run.heal()
    run.history.check()
    run.check_end()
    run.check_refusals()
    run.check_errors()
