"""Random runs of one leader, followers and a controller that are simple models (zookeeper-mode.md section 13).

The log of a follower is a prefix of the leader's, because there is one leader, so its length is the model. The
controller changes its state by AlterPartition, and when a broker dies. The leader gets that state later, and the same
state again when the topic's configuration changes. Requests and responses are lost.
"""

import random

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.replicas.tests.leading import LAG_MS, LOCAL, Leader
from odradek.replication.tests.support import broker

E = ErrorCode
REPLICAS = (1, 2, 3, 4)
STEPS = 400


class Run:
    """One random run; each method with the prefix `do_` is a step."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.min_isr = self.random.choice((1, 2, 3))
        isr = REPLICAS[: self.random.randint(1, 4)]
        self.syncs = self.random.random() < 0.3
        config = {"min_insync_replicas": str(self.min_isr), "flush_before_acks": str(self.syncs).lower()}
        self.leader = Leader(REPLICAS, isr, **config)
        self.partition = self.leader.partition
        self.lengths = dict.fromkeys(REPLICAS[1:], 0)
        self.alive = set(REPLICAS[1:])
        self.stored = self.leader.metadata
        self.unsent = []
        self.acks_awaited, self.acknowledged = [], 0
        self.high_watermark = 0
        self.steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]

    def run(self):
        for _ in range(STEPS):
            step = self.random.choice(self.steps)
            step()
            self.check(step.__name__)

    # Steps

    def do_append(self):
        try:
            info = self.leader.append(self.random.randint(1, 3), acks=self.random.choice((1, -1)))
        except KafkaError as error:
            assert error.code == E.NOT_ENOUGH_REPLICAS
        else:
            self.acks_awaited.append(info.last_offset + 1)

    def do_append_again(self):
        self.do_append()

    def do_fetch(self):
        """Let followers fetch some records; the response may be lost."""
        for replica in sorted(self.alive):
            if self.random.random() < 0.7:
                self.leader.fetch(replica, self.lengths[replica])
                if self.random.random() < 0.8:
                    behind = self.leader.log_end - self.lengths[replica]
                    self.lengths[replica] += self.random.choice((behind, self.random.randint(0, behind)))

    def do_fetch_again(self):
        self.do_fetch()

    def do_sync(self):
        self.partition.log.flush(self.leader.now_ms)
        self.partition.synced()

    def do_pass_time(self):
        self.leader.now_ms += self.random.choice((1, 1000, LAG_MS // 2, LAG_MS + 1))

    def do_shrink(self):
        self.partition.shrink_isr()

    def do_kill(self):
        """A follower's broker dies: the controller removes it from the ISR in a new leader epoch (section 5)."""
        if len(self.alive) < 2 or self.random.random() < 0.7:
            return
        replica = self.random.choice(sorted(self.alive))
        self.alive.discard(replica)
        isr = tuple(one for one in self.stored.isr if one != replica)
        self._store(isr, bumps_leader_epoch=True)
        self.unsent.append(("brokers", replica, False))
        self.unsent.append(("metadata", self.stored, None))

    def do_restart(self):
        dead = sorted(set(REPLICAS[1:]) - self.alive)
        if dead:
            replica = self.random.choice(dead)
            self.alive.add(replica)
            self.unsent.append(("brokers", replica, True))

    def do_deliver(self):
        """Deliver the controller's oldest request to the leader."""
        while self.unsent and self.random.random() < 0.8:
            kind, value, is_alive = self.unsent.pop(0)
            if kind == "metadata":
                self.leader.metadata = value
                self.partition.apply(value, self.partition.log)
            elif is_alive:
                self.leader.image.put_broker(broker(value))
            else:
                self.leader.image.remove_broker(value)

    def do_apply_again(self):
        """The topic's configuration changed: the ReplicaManager applies the metadata that it has once more."""
        self.partition.apply(self.leader.metadata, self.partition.log)

    def do_answer(self):
        controller = self.leader.controller
        if not controller.is_waiting:
            return
        chance = self.random.random()
        if chance < 0.15:
            controller.fail()
        elif chance < 0.25:
            controller.answer(error_code=self.random.choice((E.STALE_BROKER_EPOCH, E.NOT_CONTROLLER)))
        else:
            fields = self._alter(controller.requests[-1].topics[0].partitions[0])
            if chance < 0.4:
                controller.fail()
            else:
                controller.answer((self.partition.topic_id, 0, fields))

    def do_end_delay(self):
        if self.leader.controller.is_delaying:
            self.leader.controller.end_delay()

    # The controller

    def _store(self, isr, *, bumps_leader_epoch=False):
        self.stored = self.stored._replace(
            isr=isr,
            partition_epoch=self.stored.partition_epoch + 1,
            leader_epoch=self.stored.leader_epoch + bumps_leader_epoch,
        )

    def _alter(self, data):
        """Return the fields of the response, after the change if it is allowed (section 7, AP)."""
        isr = tuple(member.broker_id for member in data.new_isr_with_epochs)
        if data.leader_epoch != self.stored.leader_epoch:
            return {"error_code": E.FENCED_LEADER_EPOCH}
        if set(isr) == set(self.stored.isr):
            return self._describe()
        if data.partition_epoch != self.stored.partition_epoch:
            return {"error_code": E.INVALID_UPDATE_VERSION}
        if set(isr) - self.alive - {LOCAL}:
            return {"error_code": E.INELIGIBLE_REPLICA}
        self._store(isr)
        return self._describe()

    def _describe(self):
        return {
            "leader_id": LOCAL,
            "leader_epoch": self.stored.leader_epoch,
            "isr": list(self.stored.isr),
            "partition_epoch": self.stored.partition_epoch,
        }

    # Invariants

    def check(self, step):
        partition, stored, high_watermark = self.partition, self.stored, self.leader.high_watermark
        assert self.high_watermark <= high_watermark <= self.leader.log_end, step
        self.high_watermark = high_watermark
        assert not self.syncs or high_watermark <= self.partition.log.flushed_offset, step
        assert LOCAL in partition.isr and set(partition.isr) <= set(partition.replicas), step
        assert LOCAL in stored.isr and set(stored.isr) <= set(REPLICAS), step
        for member in stored.isr:
            if member != LOCAL:
                assert self.lengths[member] >= high_watermark, f"invariant 6: {member} after {step}"
        if partition.partition_epoch == stored.partition_epoch:
            assert set(partition.maximal_isr) >= set(stored.isr), f"invariant 7 after {step}"
        self.acks_awaited = [offset for offset in self.acks_awaited if not self._is_acknowledged(offset)]
        for member in stored.isr:
            if member != LOCAL:
                assert self.lengths[member] >= self.acknowledged, f"invariant 1: {member} after {step}"

    def _is_acknowledged(self, offset):
        if not self.partition.has_reached(offset):
            return False
        self.acknowledged = max(self.acknowledged, offset)
        return True

    def heal(self):
        """Invariant 13: in the end all live replicas are in the ISR."""
        self.leader.append()
        self.do_sync()
        for _ in range(20):
            for kind, value, is_alive in self.unsent:
                if kind == "metadata":
                    self.leader.apply(**value._asdict())
                elif is_alive:
                    self.leader.image.put_broker(broker(value))
                else:
                    self.leader.image.remove_broker(value)
            self.unsent.clear()
            if self.leader.controller.is_waiting:
                fields = self._alter(self.leader.controller.requests[-1].topics[0].partitions[0])
                self.leader.controller.answer((self.partition.topic_id, 0, fields))
            self.do_end_delay()
            for replica in sorted(self.alive):
                self.lengths[replica] = self.leader.log_end
                self.leader.fetch(replica, self.leader.log_end)
            self.leader.now_ms += LAG_MS
            self.partition.shrink_isr()
            self.check("heal")
            if not self._needs_metadata():
                continue
            # As when a controller takes over: it sends its state in a new leader epoch.
            self._store(self.stored.isr, bumps_leader_epoch=True)
            self.unsent.append(("metadata", self.stored, None))
        assert set(self.stored.isr) == {LOCAL} | self.alive
        if len(self.stored.isr) >= self.min_isr:
            assert self.leader.high_watermark == self.leader.log_end

    def _needs_metadata(self):
        """Return whether a change is pending that the controller has answered for the last time."""
        return self.partition.isr != self.partition.maximal_isr and not len(self.leader.queue)


@pytest.mark.parametrize("seed", range(40))
def test_random_run(seed):
    run = Run(seed)
    run.run()
    run.heal()
