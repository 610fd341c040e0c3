"""Random failures of requests to brokers and of operations of the store, besides those of `test_controller_random`.

What fails is repeated: at the end all brokers have the same metadata, without deleted topics.
"""

import os
import random
from contextlib import suppress

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from odradek.protocol.messages.stop_replica import StopReplicaResponse
from odradek.protocol.messages.update_metadata import UpdateMetadataResponse
from odradek.replication.controller.tests.test_controller_random import BROKERS, EXPECTED, STEPS, Run
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import StoreUnavailableError, run_now

FIRST_SEED = int(os.environ.get("ODRADEK_CONTROLLER_SEED", "1"))
SEEDS = int(os.environ.get("ODRADEK_CONTROLLER_SEEDS", "8"))
RESPONSES = {
    "leader_and_isr": LeaderAndIsrResponse,
    "update_metadata": UpdateMetadataResponse,
    "stop_replica": StopReplicaResponse,
}


class FaultyRun(Run):
    """A run in which brokers fail to apply requests, and the store fails. What the controller delays is run."""

    def __init__(self, seed):
        self.faults = random.Random(f"faults {seed}")
        self.failing = set()
        self.failing_share = 0.0
        self.compared_in = {}
        super().__init__(seed)

    def start(self, broker_id):
        super().start(broker_id)
        node = self.world.nodes[broker_id]
        self.compared_in[broker_id] = None
        node.controller.deletion.run_later = lambda delay_ms, task: self.run_later(node, delay_ms, task)
        for name in ("transaction", "get_children", "get", "exists"):
            setattr(node.store, name, self.with_store_failures(node, getattr(node.store, name)))
        for name, response in RESPONSES.items():
            # That of the class, because a broker that starts again has the attributes of its last process.
            apply = getattr(type(node.fake), name).__get__(node.fake)
            setattr(node.fake, name, self.with_failures(node.fake, apply, response))

    def run_later(self, node, delay_ms, task):
        async def work():
            await self.world.executor.delay(delay_ms)
            if not node.is_crashed:
                await task()

        self.ignore_failures(work())

    def rejoin(self, node):
        async def work():
            while not node.is_crashed:
                with suppress(*EXPECTED):
                    await node.controller.rejoin()
                    return
                await self.world.executor.delay(100)

        self.tasks.append(self.world.executor.start(work()))

    def with_store_failures(self, node, operation):
        async def run(*arguments, **options):
            # A broker whose start fails exits.
            if node.start.is_over and self.faults.random() < self.failing_share:
                raise StoreUnavailableError("access is denied")
            return await operation(*arguments, **options)

        return run

    def with_failures(self, fake, apply, response_type):
        async def run(request):
            if fake.broker_id in self.failing:
                return response_type(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            response = await apply(request)
            if not response.error_code:
                self.compare_with_store(fake, max(fake.epoch, request.broker_epoch))
            return response

        return run

    def compare_with_store(self, fake, broker_epoch):
        """Remove deleted topics from a broker's cache, as it does in each epoch of the controller and of the broker."""
        epochs = fake.controller_epoch, broker_epoch
        if self.compared_in[fake.broker_id] != epochs:
            self.compared_in[fake.broker_id] = epochs
            names = run_now(self.world.observer.get_children(znodes.TOPICS))
            fake.cache = {key: row for key, row in fake.cache.items() if key[0] in names}
            fake.on_metadata()

    def disturb(self):
        choice = self.faults.random()
        if choice < 0.08:
            self.failing ^= {self.faults.choice(BROKERS)}
        elif choice < 0.14:
            self.failing_share = self.faults.choice((0, 0, 0.02, 0.2))
        super().disturb()

    def heal(self):
        self.failing.clear()
        self.failing_share = 0
        super().heal()

    def check_end(self):
        super().check_end()
        names = run_now(self.world.observer.get_children(znodes.TOPICS))
        for broker_id, node in self.world.nodes.items():
            assert {name for name, _ in node.fake.cache} <= set(names), broker_id


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_what_fails_is_repeated(seed):
    run = FaultyRun(seed)
    for _ in range(STEPS):
        run.disturb()
    run.heal()
    run.history.check()
    run.check_end()
    run.check_refusals()
    run.check_errors()
