"""Random reassignments with failing brokers, changing ISRs and controllers that stop at any write to the store."""

import contextlib
import random

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.partitions import reassignment
from odradek.replication.controller.partitions.reassignment import find_target, is_reassigning
from odradek.replication.controller.registration import Registration
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster, broker

OTHERS = (2, 3, 4, 5, 6)
TOPIC_ID = bytes(15) + b"t"


class StoppedError(Exception):
    """The controller stopped before a write."""


class World:
    """Broker 1 is the controller.

    replicas: the brokers that have files of the partition
    lost: brokers that failed, and may have files that are not deleted
    targets: the replicas that the partition may have in the end
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.server = MemoryMetadataServer(lambda: 0)
        self.sessions = {}
        self.replicas = set()
        self.unanswered = []
        self.lost = set()
        self.epoch = 0
        self.writes_left, self.has_stopped = None, False
        self.begin_controller()
        for other in OTHERS:
            self.start(other)
        state = PartitionMetadata(1, 0, (1, 2, 3), (1, 2, 3))
        topic = TopicMetadata("t", TOPIC_ID, (state,))
        assert run_now(self.controller.create_topics([NewTopic(topic, {})])) == {}
        self.targets = {(1, 2, 3)}
        self.check()

    def begin_controller(self):
        self.unanswered = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reassignment, "stop_no_replicas", self.stop)
            self.cluster = Cluster(server=self.server)
        self.controller = self.cluster.controller
        write = self.controller.context.write

        async def write_or_stop(operations):
            if self.writes_left is None:
                return await write(operations)
            if self.writes_left == 0 and self.random.random() < 0.5:
                self.has_stopped = True
                raise StoppedError
            results = await write(operations)
            if self.writes_left == 0:
                self.has_stopped = True
                raise StoppedError
            self.writes_left -= 1
            return results

        self.controller.context.write = write_or_stop

    def restart_controller(self):
        self.writes_left, self.has_stopped = None, False
        run_now(self.cluster.controller.close())
        run_now(self.cluster.store.close())
        self.begin_controller()

    @property
    def partition(self):
        return self.controller.image.topics["t"].partitions[0]

    def stop(self, broker_id, replicas, answered):
        self.unanswered.append((broker_id, replicas, answered))

    def answer(self):
        broker_id, replicas, answered = self.unanswered.pop(0)
        if broker_id in self.controller.image.brokers:
            # A broker ignores a request of an older leader epoch than that with which it got the partition again.
            [(_, _, leader_epoch)] = replicas
            if broker_id not in self.partition.replicas or leader_epoch >= self.partition.leader_epoch:
                self.replicas.discard(broker_id)
            answered()

    def start(self, broker_id):
        self.sessions[broker_id] = self.server.connect()
        run_now(Registration(self.sessions[broker_id], lambda: 0).register(broker(broker_id)))

    def fail(self, broker_id):
        run_now(self.sessions.pop(broker_id).close())

    def catch_up(self, broker_id):
        """A live replica joins the ISR, as after AlterPartition."""
        p = self.partition
        if p.leader != NO_LEADER and broker_id in p.replicas and broker_id not in p.isr:
            topic = self.controller.image.topics["t"]
            changed = topic._replace(partitions=(p._replace(isr=(*p.isr, broker_id)),))
            run_now(self.controller.put_partitions([changed]))

    def reassign(self, target):
        if target is None and not is_reassigning(self.partition):
            return
        wanted = target or [r for r in self.partition.replicas if r not in self.partition.adding]
        # If the controller stops, the outcome is not known.
        before, self.targets = self.targets, {*self.targets, tuple(wanted)}
        errors = run_now(
            self.controller.request("reassign", lambda: self.controller.reassignments.begin("t", {0: target}))
        )
        if errors[0] is None:
            self.targets = {tuple(wanted)}
        else:
            assert errors[0].code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            self.targets = before

    def step(self):
        live = [1, *self.sessions]
        choice = self.random.randrange(10)
        if choice <= 1:
            self.reassign(self.random.sample(live, self.random.randrange(1, min(4, len(live)) + 1)))
        elif choice == 2:
            self.reassign(None)
        elif choice <= 5:
            self.catch_up(self.random.choice(live))
        elif choice == 6 and len(self.sessions) > 2:
            self.fail(self.random.choice(list(self.sessions)))
        elif choice == 7 and len(self.sessions) < len(OTHERS):
            self.start(self.random.choice([other for other in OTHERS if other not in self.sessions]))
        elif choice == 8 and self.unanswered:
            self.answer()
        elif choice == 9:
            self.writes_left = self.random.randrange(3)

    def check(self):
        p = self.partition
        self.replicas.update(replica for replica in p.replicas if replica in self.controller.image.brokers)
        assert p.isr
        assert set(p.isr) <= set(p.replicas)
        assert len(set(p.replicas)) == len(p.replicas)
        assert p.leader == NO_LEADER or p.leader in p.isr
        assert p.leader_epoch >= self.epoch
        self.epoch = p.leader_epoch
        node = znodes.decode_topic(run_now(self.cluster.store.get(znodes.topic_path("t"))).data)
        # Files that must be deleted are on brokers that the node still lists, except on failed brokers.
        live = self.replicas & self.controller.image.brokers.keys() - self.lost
        assert live <= set(node.replicas[0])

    def run(self, steps):
        for _ in range(steps):
            before = set(self.controller.image.brokers)
            with contextlib.suppress(StoppedError):
                self.step()
            if self.has_stopped:
                self.restart_controller()
            # Kafka does not delete the replicas of brokers that failed meanwhile.
            self.lost |= before - self.controller.image.brokers.keys()
            self.check()

    def finish(self):
        self.restart_controller()
        for other in OTHERS:
            if other not in self.sessions:
                self.start(other)
        for _ in range(3):
            for replica in self.partition.replicas:
                self.catch_up(replica)
            while self.unanswered:
                self.answer()
        self.check()
        p = self.partition
        assert (p.adding, p.removing, find_target(p)) == ((), (), p.replicas)
        node = znodes.decode_topic(run_now(self.cluster.store.get(znodes.topic_path("t"))).data)
        assert (node.replicas[0], node.adding, node.removing) == (p.replicas, {}, {})
        assert p.replicas in self.targets
        assert self.replicas - self.lost <= set(p.replicas)
        assert p.leader in p.isr


@pytest.mark.parametrize("seed", range(60))
def test_reassignments_end_with_their_target(seed):
    world = World(seed)
    world.run(60)
    world.finish()
