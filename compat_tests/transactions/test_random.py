"""The same random requests of transactional producers to Odradek and to Apache Kafka, one by one: equal responses.

Each step is drawn at random from the state so far: usually a valid request, and otherwise one with any kind of error.
After each step both brokers must return the same state of every transaction, every producer and every record.
"""

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from compat_tests import limits
from compat_tests.backends import BROKERS
from compat_tests.bad_frames import Connection
from compat_tests.clients import load
from compat_tests.conftest import SHARED_PROPERTIES
from compat_tests.plain_requests import ask_for_coordinator
from compat_tests.transaction_frames import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Batch,
    Code,
    Partition,
    Producer,
    add_batched,
    add_offsets,
    add_partitions,
    await_coordinator,
    await_topic,
    batches,
    commit_offset,
    committed,
    describe,
    describe_producers,
    end,
    fetch,
    init,
    offset_at,
    produce,
    records_of,
    start,
    write_markers,
)

pytestmark = pytest.mark.timeout(limits.LONG_TEST_S)

STEPS = 150
SEEDS = int(os.environ.get("ODRADEK_TRANSACTION_SEEDS", "1"))
IDS, PARTITIONS = 2, 3
VALID_SHARE = 0.75
SETTLE_S = 10
TIMEOUT_MS = 900_000
"""Of transactions: none ends by it, also not while a broker starts."""


class Side:
    """One broker: its connection, and the names by which its ids are compared with the other's."""

    def __init__(self, broker: Any, *, tells_coordinator_epochs: bool = True) -> None:
        self.broker = broker
        self.connection = Connection(broker.port)
        self.tells_coordinator_epochs = tells_coordinator_epochs
        self.ids: dict[int, int] = {}
        self.history: list[list[Producer]] = []
        self.topic = self.group = ""
        self.stuck: set[str] = set()

    def begin(self, name: str) -> None:
        """Create a topic and producers for one seed."""
        self.topic, self.group = f"{name}-topic", f"{name}-group"
        with load("kafka_python").Admin(self.broker.bootstrap_servers) as admin:
            admin.create_topic(self.topic, PARTITIONS)
        await_topic(self.connection, self.topic, PARTITIONS)
        self.ids = {-1: -1}
        self.history = [[start(self.connection, f"{name}-{number}", timeout_ms=TIMEOUT_MS)] for number in range(IDS)]
        for known in self.history:
            self.named(known[0].producer_id)

    def restart(self, *, clean: bool) -> None:
        self.connection.socket.close()
        self.broker.restart(clean=clean)
        self.connection = Connection(self.broker.port)
        await_coordinator(self.connection)
        ask_for_coordinator(self.connection)
        await_topic(self.connection, self.topic, PARTITIONS)

    def named(self, producer_id: int) -> int:
        """Return a producer id as a small number: its position in the order of first use."""
        return self.ids.setdefault(producer_id, len(self.ids) - 1)

    def partition(self, index: int) -> Partition:
        return self.topic, index

    def settle(self) -> None:
        """Wait until every transaction has all its markers, except for those that never will.

        A marker from outside may have a later epoch than the transaction's own, which is then refused permanently.
        """
        for known in self.history:
            name = known[0].transactional_id
            give_up_at = time.monotonic() + SETTLE_S
            while name not in self.stuck and describe(self.connection, name).transaction_state.startswith("Prepare"):
                time.sleep(0.01)
                if time.monotonic() > give_up_at:
                    self.stuck.add(name)

    def read_state(self) -> dict[str, Any]:
        """Return the broker's state of the seed's transactions, with names for its ids."""
        self.settle()
        found: dict[str, Any] = {}
        for number, known in enumerate(self.history):
            response = describe(self.connection, known[0].transactional_id)
            topics = {(t.topic.removeprefix(self.topic), p) for t in response.topics for p in t.partitions}
            producer = (self.named(response.producer_id), response.producer_epoch)
            state = (response.error_code, response.transaction_state, *producer)
            found[f"transaction {number}"] = (*state, topics)
        for index in range(PARTITIONS):
            partition = self.partition(index)
            _, producers = describe_producers(self.connection, partition)
            found[f"producers {index}"] = [
                (
                    self.named(p.producer_id),
                    p.producer_epoch,
                    p.last_sequence,
                    self._coordinator(p.coordinator_epoch),
                    p.current_txn_start_offset,
                )
                for p in producers
            ]
            log = fetch(self.connection, partition, isolation=READ_UNCOMMITTED)
            found[f"log {index}"] = [self._batch(each) for each in batches(log.records)]
            read = fetch(self.connection, partition, isolation=READ_COMMITTED)
            aborted = sorted((self.named(pid), first) for pid, first in read.aborted or ())
            stable = offset_at(self.connection, partition, isolation=READ_COMMITTED)
            found[f"read {index}"] = (read.code, read.high_watermark, read.last_stable_offset, aborted, stable)
        found["offsets"] = [
            committed(self.connection, self.group, self.partition(index), stable=stable)
            for index in range(PARTITIONS)
            for stable in (False, True)
        ]
        return found

    def _batch(self, batch: Batch) -> Batch:
        marker = batch.marker and (batch.marker[0], self._coordinator(batch.marker[1]))
        return batch._replace(producer_id=self.named(batch.producer_id), marker=marker)

    def _coordinator(self, epoch: int) -> int:
        """Return a comparable epoch: over restarts each broker counts leader epochs differently."""
        return epoch if self.tells_coordinator_epochs else min(epoch, 0)


# A step as plain data, so that both sides execute the same: its name, and its arguments.
Step = tuple[str, dict[str, Any]]


class Chooser:
    """Draws steps by a seed and the earlier responses of the first side."""

    def __init__(self, seed: int, kinds: Iterable[str] = ()) -> None:
        self.chance = random.Random(seed)
        self.kinds = list(kinds) or list(STEPS_BY_NAME)

    def draws_valid(self) -> bool:
        return self.chance.random() < VALID_SHARE

    def draw_producer(self, side: Side) -> dict[str, int]:
        """Return a producer by its place in the history: usually the last one, with its own epoch."""
        number = self.chance.randrange(IDS)
        known = side.history[number]
        place = len(known) - 1 if self.draws_valid() else self.chance.randrange(len(known))
        return {"number": number, "place": place, "by": 0 if self.draws_valid() else self.chance.choice([-1, 1])}

    def partitions(self) -> list[int]:
        return self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS))

    def step(self, side: Side) -> Step:
        kind = self.chance.choices(self.kinds, [STEPS_BY_NAME[kind][0] for kind in self.kinds])[0]
        choose = self.chance.choice
        given: dict[str, Any] = self.draw_producer(side)
        if kind == "init":
            given |= {"version": choose([1, 3, 4, 5]), "with_producer": choose([True, False])}
        elif kind == "add partitions":
            given |= {"version": choose([0, 1, 2, 3]), "indexes": self.partitions()}
        elif kind == "add batched":
            given |= {"version": choose([4, 5]), "indexes": self.partitions(), "verify_only": choose([True, False])}
        elif kind == "add offsets":
            given |= {"version": choose([0, 2, 4])}
        elif kind == "commit offset":
            given |= {"version": choose([2, 3, 4, 5]), "index": choose(range(PARTITIONS)), "offset": choose(range(99))}
        elif kind == "end":
            given |= {"version": choose([1, 4, 5, 5]), "commit": choose([True, False])}
        elif kind == "produce":
            given |= self.records(side, given)
        elif kind == "marker":
            given |= {"index": choose(range(PARTITIONS)), "commit": choose([True, False]), "level": choose([0, 1, 2])}
        return kind, given

    def records(self, side: Side, who: Mapping[str, int]) -> dict[str, Any]:
        index = self.chance.randrange(PARTITIONS)
        producer = side.history[who["number"]][who["place"]]
        wanted = [
            p.last_sequence + 1
            for p in describe_producers(side.connection, side.partition(index))[1]
            if p.producer_id == producer.producer_id and p.producer_epoch == producer.epoch + who["by"]
        ]
        sequence = wanted[0] if wanted else 0
        if not self.draws_valid():
            sequence = max(0, sequence + self.chance.choice([-2, -1, 1, 5]))
        return {
            "version": self.chance.choice([3, 10, 11, 12, 12, 12]),
            "index": index,
            "sequence": sequence,
            "count": self.chance.choice([1, 1, 3]),
            "transactional": self.chance.random() < 0.95,
        }


def _producer(side: Side, number: int, place: int, by: int) -> Producer:
    known = side.history[number][place]
    return known.at(known.epoch + by)


def _remember(side: Side, number: int, producer: Producer) -> None:
    if producer not in side.history[number]:
        side.history[number].append(producer)


def do_init(side: Side, who: Producer, number: int, version: int, with_producer: bool) -> Any:
    given = (who.producer_id, who.epoch) if with_producer and who.epoch >= 0 else (-1, -1)
    response = init(side.connection, who.transactional_id, producer=given, timeout_ms=TIMEOUT_MS, version=version)
    if response.code == Code.NONE:
        _remember(side, number, Producer(who.transactional_id, response.producer_id, response.epoch))
    return response._replace(producer_id=side.named(response.producer_id))


def do_add_partitions(side: Side, who: Producer, number: int, version: int, indexes: list[int]) -> Any:
    response = add_partitions(side.connection, who, [side.partition(index) for index in indexes], version)
    return [response[side.partition(index)] for index in indexes]


def do_add_batched(side: Side, who: Producer, number: int, version: int, indexes: list[int], verify_only: bool) -> Any:
    wanted = {who: [side.partition(index) for index in indexes]}
    code, response = add_batched(side.connection, wanted, verify_only=verify_only, version=version)
    return code, [response[who.transactional_id, side.partition(index)] for index in indexes]


def do_add_offsets(side: Side, who: Producer, number: int, version: int) -> Any:
    return add_offsets(side.connection, who, side.group, version)


def do_commit_offset(side: Side, who: Producer, number: int, version: int, index: int, offset: int) -> Any:
    return commit_offset(side.connection, who, side.group, side.partition(index), offset, version=version)


def do_end(side: Side, who: Producer, number: int, version: int, commit: bool) -> Any:
    response = end(side.connection, who, commit=commit, version=version)
    if response.code == Code.NONE and version >= 5:
        _remember(side, number, Producer(who.transactional_id, response.producer_id, response.epoch))
    return response._replace(producer_id=side.named(response.producer_id))


def do_produce(
    side: Side, who: Producer, number: int, version: int, index: int, sequence: int, count: int, transactional: bool
) -> Any:
    records = records_of(who, sequence, count, transactional=transactional)
    return produce(side.connection, who, side.partition(index), records, version=version)


def do_marker(side: Side, who: Producer, number: int, index: int, commit: bool, level: int) -> Any:
    partition = side.partition(index)
    return write_markers(side.connection, who, [partition], commit=commit, transaction_version=level)[partition]


STEPS_BY_NAME: dict[str, tuple[int, Callable[..., Any]]] = {
    "init": (5, do_init),
    "add partitions": (15, do_add_partitions),
    "add batched": (5, do_add_batched),
    "add offsets": (5, do_add_offsets),
    "commit offset": (10, do_commit_offset),
    "end": (15, do_end),
    "produce": (40, do_produce),
    "marker": (3, do_marker),
}


@pytest.fixture(scope="module")
def sides(kafka_jars: Any) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        made = [Side(stack.enter_context(BROKERS[name](SHARED_PROPERTIES))) for name in ("kafka", "odradek")]
        for side in made:
            stack.enter_context(side.connection)
            await_coordinator(side.connection)
            ask_for_coordinator(side.connection)
        yield made


class Run:
    """One seed against both brokers. A step raises, with all steps so far, at the first difference."""

    def __init__(self, seed: int, sides: list[Side], kinds: Iterable[str] = ()) -> None:
        self.seed = seed
        self.sides = sides
        self.chooser = Chooser(seed, kinds)
        self.trace: list[str] = []
        for side in sides:
            side.begin(f"random-{seed}")

    def step(self) -> None:
        kind, given = self.chooser.step(self.sides[0])
        answers = []
        for side in self.sides:
            rest = dict(given)
            number = rest["number"]
            who = _producer(side, number, rest.pop("place"), rest.pop("by"))
            answers.append(STEPS_BY_NAME[kind][1](side, who, **rest))
        self.compare(f"{kind} {given}", answers)

    def restart(self, *, clean: bool) -> None:
        for side in self.sides:
            side.restart(clean=clean)
        self.compare("stop" if clean else "kill", [None, None])

    def compare(self, what: str, answers: list[Any]) -> None:
        states = [side.read_state() for side in self.sides]
        self.trace.append(f"{what}: {answers[0]}")
        if answers[0] != answers[1] or states[0] != states[1]:
            pytest.fail(_difference(self.seed, self.trace, answers, states), pytrace=False)


def _difference(seed: int, trace: list[str], answers: list[Any], states: list[dict[str, Any]]) -> str:
    lines = [f"seed {seed}, after these steps:", *trace]
    if answers[0] != answers[1]:
        lines.append(f"Apache Kafka returned {answers[0]}, Odradek {answers[1]}")
    for what in states[0]:
        if states[0][what] != states[1][what]:
            lines.append(f"{what}: Apache Kafka has {states[0][what]}, Odradek {states[1][what]}")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_brokers_answer_the_same(sides, seed):
    run = Run(seed, sides)
    for _ in range(STEPS):
        run.step()


def test_both_brokers_answer_the_same_after_crashes_and_stops(kafka_jars):
    """Open transactions continue, decided ones are completed, and repeated sequences are detected."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(BROKERS[name](SHARED_PROPERTIES)) for name in ("kafka", "odradek")]
        sides = [Side(broker, tells_coordinator_epochs=False) for broker in brokers]
        for side in sides:
            await_coordinator(side.connection)
            ask_for_coordinator(side.connection)
        # A marker from outside has no coordinator epoch that both brokers accept.
        run = Run(1000, sides, [kind for kind in STEPS_BY_NAME if kind != "marker"])
        for clean in (False, True):
            for _ in range(40):
                run.step()
            run.restart(clean=clean)
        for _ in range(40):
            run.step()
