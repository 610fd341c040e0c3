"""Transactional ids under random requests of rival and fenced producers, lost writes, failed markers, crashes and time.

Invariants, most of them checked by the records in the log:

- a transaction has one decision: PrepareCommit is followed by CompleteCommit, and PrepareAbort by CompleteAbort
- a producer id is never reused, its epoch never decreases, and no two producers get the same epoch
- markers are written for the last decision only, and of its kind; never two are in flight to a partition
- the end is written only after every partition has its marker
- a decision whose request succeeded is in the log, and every decided transaction is completed
- after every step, the state that clients get is the one loaded from the replicated part of the log, and the state with
  the unreplicated records is the one loaded from the whole log
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.coordinator.result import CoordinatorRecord
from odradek.coordinator.tests.driver import Marker
from odradek.coordinator.tests.transaction_driver import TransactionDriver
from odradek.coordinator.transactions.records import (
    TransactionLogValue,
    read_transaction_key,
    read_transaction_value,
    transaction_record,
)
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard import TransactionShard
from odradek.coordinator.transactions.shard_state import TransactionShardState
from odradek.coordinator.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    MAX_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TRANSITIONS,
    Transaction,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
)
from odradek.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

IDS = ("a", "b")
CLIENTS = st.integers(0, 3)
PARTITIONS = st.lists(st.integers(0, 2), min_size=1, max_size=3)
WRITE_ERRORS = st.sampled_from(
    [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.MESSAGE_TOO_LARGE]
)
MARKER_ERRORS = st.sampled_from(
    [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR]
)
END_OF = {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT}
TIMEOUT_MS = 15_000
EXPIRATION_MS = 100_000


class Client:
    """A producer with its id and epoch. Clients 0 and 1 share one transactional id, 2 and 3 another."""

    def __init__(self, number):
        self.transactional_id = IDS[number // 2]
        self.producer_id = -1
        self.epoch = -1


class Written:
    """A record of the log, decoded; a tombstone has no value, state, producer and partitions."""

    def __init__(self, record: CoordinatorRecord | Marker) -> None:
        assert isinstance(record, CoordinatorRecord)
        key = read_transaction_key(record.key)
        assert isinstance(key, str)
        self.transactional_id = key
        self.value = None if record.value is None else read_transaction_value(record.value)

    @property
    def state(self) -> TransactionState | None:
        return None if self.value is None else TransactionState(self.value.transaction_status)

    @property
    def producer(self) -> tuple[int, int]:
        return self.value.producer_id, self.value.producer_epoch

    @property
    def partitions(self) -> set[tuple[str, int]]:
        topics = self.value.transaction_partitions or ()
        return {(topic.topic, index) for topic in topics for index in topic.partition_ids}


class Replay:
    """A shard that has replayed the log up to an offset: records added since the last time, all after a truncation."""

    def __init__(self, driver: TransactionDriver) -> None:
        self._driver = driver
        self._replayed: list[CoordinatorRecord | Marker] = []
        self._shard = self._new_shard()

    def _new_shard(self) -> TransactionShard:
        self._driver.coordinator_epoch -= 1  # not the epoch of a coordinator
        return self._driver.new_shard()

    def transactions(self, end_offset: int | None = None) -> dict[str, Transaction]:
        count, log = len(self._replayed), self._driver.log[:end_offset]
        if log[:count] != self._replayed:
            self._shard, count = self._new_shard(), 0
        self._driver.replay_into(self._shard, end_offset, start_offset=count)
        self._replayed = log
        return self._shard._state.transactions


class TransactionMachine(RuleBasedStateMachine):
    @initialize(version=st.sampled_from([0, 1, 2, 2]), epoch=st.sampled_from([-1, 5, MAX_EPOCH - 4, MAX_EPOCH - 2]))
    def begin(self, version, epoch):
        self.version = version
        self.driver = TransactionDriver(
            TransactionSettings(
                transaction_version=version,
                transactional_id_expiration_ms=EXPIRATION_MS,
                remove_expired_interval_ms=EXPIRATION_MS // 2,
            )
        )
        driver = self.driver
        driver.is_holding_markers = True
        driver.on_reply = self.note
        driver.on_record = self.note_record
        driver.on_outcome = self.note_outcome
        self.last = {}  # transactional id -> last record
        self.acknowledged = {}  # transactional id -> partitions that have the marker of the last decision
        self.used_ids = set()
        self.clients = [Client(number) for number in range(4)]
        self.asked = {}
        self.lost = set()
        self.granted = {}  # producer id -> highest epoch that a client got
        self.succeeded = []
        self.replay_of_replicated, self.replay_of_all = Replay(driver), Replay(driver)
        if epoch >= 0:
            self.seed(epoch)
        driver.load()
        for number in (0, 2):
            self.init(number, False)

    def seed(self, epoch):
        """Give a transactional id a completed transaction with this epoch."""
        value = TransactionLogValue(
            producer_id=900,
            producer_epoch=epoch,
            transaction_timeout_ms=TIMEOUT_MS,
            transaction_status=COMPLETE_COMMIT.value,
            transaction_partitions=[],
            transaction_last_update_timestamp_ms=self.driver.now_ms,
            transaction_start_timestamp_ms=self.driver.now_ms,
        )
        record = transaction_record("a", value, 0)
        self.driver.log.append(record)
        self.last["a"] = Written(record)
        self.used_ids.add(900)
        for client in self.clients[:2]:
            client.producer_id, client.epoch = 900, epoch

    # -- clients -------------------------------------------------------------------------------------------------

    def ask(self, kind, *details):
        token = len(self.asked)
        self.asked[token] = (kind, *details)
        return token

    @rule(number=CLIENTS, goes_on=st.booleans())
    def init(self, number, goes_on):
        client = self.clients[number]
        goes_on = goes_on and client.producer_id >= 0
        request = InitProducerIdRequest(
            transactional_id=client.transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=client.producer_id if goes_on else -1,
            producer_epoch=client.epoch if goes_on else -1,
        )
        token = self.ask("init", client, goes_on)
        self.driver.call("init_producer_id", token, request, 5)

    @rule(number=CLIENTS, indexes=PARTITIONS, is_commit=st.booleans(), bumps=st.booleans())
    def transact(self, number, indexes, is_commit, bumps):
        self.add(number, indexes, bumps)
        self.finish(number, is_commit, bumps)

    @rule(number=CLIENTS, indexes=PARTITIONS, by_broker=st.booleans())
    def add(self, number, indexes, by_broker):
        client = self.clients[number]
        topics = [AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="x", partitions=indexes)]
        if by_broker:
            transaction = AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
                transactional_id=client.transactional_id,
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                topics=topics,
            )
            self.driver.call("add_or_verify_partitions", self.ask("add"), transaction, 5)
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=client.transactional_id,
            v3_and_below_producer_id=client.producer_id,
            v3_and_below_producer_epoch=client.epoch,
            v3_and_below_topics=topics,
        )
        self.driver.call("add_partitions", self.ask("add"), request, 3)

    @rule(number=CLIENTS, is_commit=st.booleans(), bumps=st.booleans())
    def finish(self, number, is_commit, bumps):
        client = self.clients[number]
        bumps = bumps and self.version == 2
        request = EndTxnRequest(
            transactional_id=client.transactional_id,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            committed=is_commit,
        )
        token = self.ask("end", client, is_commit, bumps)
        self.driver.call("end_txn", token, request, 5 if bumps else 3)

    def note(self, token, response):
        _, *details = self.asked[token]
        assert token not in self.lost
        if isinstance(response, InitProducerIdResponse) and not response.error_code:
            client, goes_on = details
            client.producer_id, client.epoch = response.producer_id, response.producer_epoch
            highest = self.granted.get(response.producer_id, -1)
            if not goes_on:
                assert response.producer_epoch > highest, "another client has this epoch"
            assert response.producer_epoch >= highest
            self.granted[response.producer_id] = response.producer_epoch
        elif isinstance(response, EndTxnResponse) and not response.error_code:
            client, is_commit, bumps = details
            last = self.last[client.transactional_id]
            expected = {PREPARE_COMMIT, COMPLETE_COMMIT} if is_commit else {PREPARE_ABORT, COMPLETE_ABORT}
            assert last.state in expected, "the request succeeded, but its decision is not in the log"
            self.succeeded.append((client.transactional_id, len(self.driver.log)))
            if bumps:
                highest = self.granted.get(response.producer_id, -1)
                assert response.producer_epoch >= highest
                self.granted[response.producer_id] = response.producer_epoch
                client.producer_id, client.epoch = response.producer_id, response.producer_epoch

    # -- the log -------------------------------------------------------------------------------------------------

    def note_record(self, record):
        written = Written(record)
        name, before = written.transactional_id, self.last.get(written.transactional_id)
        if written.value is None:
            assert before is None or before.state not in {ONGOING, *PREPARED}, "an open transaction was deleted"
            self.last.pop(name, None)
            return
        producer_id, epoch = written.producer
        if before is None:
            assert producer_id not in self.used_ids or epoch == 0
        else:
            assert written.state in TRANSITIONS[before.state], f"{before.state} is followed by {written.state}"
            if before.state in PREPARED:
                assert written.state is END_OF[before.state]
                missing = before.partitions - self.acknowledged[name]
                assert not missing, f"the end is written, but {missing} have no marker"
            if producer_id == before.producer[0]:
                assert epoch >= before.producer[1], "the epoch decreased"
            else:
                # A crash may have removed the end, but not the next id, which is in the decision.
                is_named = producer_id == before.value.next_producer_id
                assert is_named or producer_id not in self.used_ids, "a producer id is reused"
                assert epoch == 0
                assert before.producer[1] >= MAX_EPOCH - 1, "a producer id was replaced before its last epoch"
        if before and before.state in PREPARED and before.value.next_producer_id != -1:
            assert written.producer == (before.value.next_producer_id, 0)
        if written.state in PREPARED:
            bumps = written.value.client_transaction_version == 2
            assert not bumps or epoch > before.producer[1] or epoch == MAX_EPOCH, "a transaction without its own epoch"
            assert written.partitions == (before.partitions if before and before.state is ONGOING else set())
            self.acknowledged[name] = set()
        self.used_ids.add(producer_id)
        self.last[name] = written

    def note_outcome(self, outcome):
        last = self.last[outcome.transactional_id]
        assert last.state is (PREPARE_COMMIT if outcome.is_commit else PREPARE_ABORT)
        assert last.producer == (outcome.producer_id, outcome.producer_epoch)
        assert set(outcome.partitions) <= last.partitions - self.acknowledged[outcome.transactional_id]
        assert outcome.coordinator_epoch == self.driver.coordinator_epoch
        in_flight = {
            partition for other, partition in self.driver.markers if other.transactional_id == outcome.transactional_id
        }
        assert not in_flight & set(outcome.partitions), "two markers are in flight to a partition"

    @precondition(lambda self: not self.driver.is_holding)
    @rule()
    def hold(self):
        self.driver.is_holding = True

    @precondition(lambda self: self.driver.held)
    @rule(is_last=st.booleans())
    def write(self, is_last):
        self.driver.release()
        if is_last:
            self.write_all()

    def write_all(self):
        self.driver.is_holding = False
        while self.driver.held:
            self.driver.release()

    @rule(error=WRITE_ERRORS)
    def lose_write(self, error):
        """Let the next append fail."""
        self.driver.refused = error

    @precondition(lambda self: self.driver.markers)
    @rule(which=st.integers(0, 5), is_unsupported=st.booleans())
    def mark(self, which, is_unsupported):
        outcome, partition = self.driver.markers.pop(which % len(self.driver.markers))
        self.apply_marker(outcome, partition)
        error = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if is_unsupported else ErrorCode.NONE
        self.driver.answer_marker(outcome, partition, error)
        self.driver.answer_marker(outcome, partition, error)

    def apply_marker(self, outcome, partition):
        last = self.last[outcome.transactional_id]
        expected = PREPARE_COMMIT if outcome.is_commit else PREPARE_ABORT
        assert last.state is expected, "a marker is written to another transaction"
        assert last.producer == (outcome.producer_id, outcome.producer_epoch)
        self.acknowledged[outcome.transactional_id].add(partition)

    @precondition(lambda self: self.driver.markers)
    @rule(which=st.integers(0, 5), error=MARKER_ERRORS)
    def fail_marker(self, which, error):
        outcome, partition = self.driver.markers.pop(which % len(self.driver.markers))
        self.driver.answer_marker(outcome, partition, error)

    @precondition(lambda self: self.driver.held or self.driver.markers)
    @rule(kept=st.integers(0, 3), marked=st.integers(0, 3))
    def crash(self, kept, marked):
        """Crash: `kept` held writes stay in the log, and `marked` markers are written but not acknowledged."""
        driver = self.driver
        arrived = driver.markers[:marked]
        for outcome, partition in arrived:
            self.apply_marker(outcome, partition)
        # The next coordinator has no acknowledgements, and has all markers written again.
        ends = [*[held.base_offset for held in driver.held], len(driver.log)]
        driver.truncate(ends[min(kept, len(ends) - 1)])
        driver.held.clear()
        driver.markers.clear()
        driver.is_holding = False
        driver.refused = None
        self.last = {}
        for written in map(Written, driver.log):
            if written.value is None:
                self.last.pop(written.transactional_id, None)
            else:
                self.last[written.transactional_id] = written
        self.lost |= driver.asked - driver.answered.keys()
        for name, last in self.last.items():
            if last.state in PREPARED:
                self.acknowledged[name] = set()
        driver.load()

    @rule(duration_ms=st.sampled_from([50, 100, 100, 5_000, TIMEOUT_MS, TIMEOUT_MS, EXPIRATION_MS]))
    def wait(self, duration_ms):
        self.driver.wait(duration_ms)

    @rule(has_some=st.sampled_from([True, True, False]))
    def refill_producer_ids(self, has_some):
        self.driver.has_producer_ids = has_some

    # -- invariants ----------------------------------------------------------------------------------------------

    @property
    def live(self):
        return self.driver.shard._state.transactions

    @staticmethod
    def fields(transaction):
        return (
            transaction.state,
            transaction.producer_id,
            transaction.previous_producer_id,
            transaction.next_producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.partitions,
            transaction.start_ms,
            transaction.last_update_ms,
            transaction.client_version,
        )

    @invariant()
    def live_state_is_that_of_the_log(self):
        if not hasattr(self, "driver"):
            return
        replicated = self.replay_of_replicated.transactions(self.driver.high_watermark)
        latest = self.replay_of_all.transactions()
        for name, transaction in self.live.items():
            record = transaction.unreplicated
            if name in replicated:
                assert self.fields(transaction) == self.fields(replicated[name])
            else:
                assert record is not None and transaction.producer_epoch == -1, "live, but not in the log"
            if record is None:
                assert self.fields(transaction) == self.fields(latest[name])
            elif record.value is None:
                assert name not in latest
            else:
                following = Transaction.of_first_record(name, record.value)
                following.apply(record.value, None)
                assert self.fields(following) == self.fields(latest[name])
        assert replicated.keys() <= self.live.keys()
        assert self.last.keys() == latest.keys() <= self.live.keys()
        for name, written in self.last.items():
            transaction = latest[name]
            assert (transaction.state, (transaction.producer_id, transaction.producer_epoch)) == (
                written.state, written.producer,
            )  # fmt: skip
            assert transaction.partitions.keys() == written.partitions
            assert transaction.timeout_ms == written.value.transaction_timeout_ms
            assert transaction.last_update_ms == written.value.transaction_last_update_timestamp_ms

    @invariant()
    def decided_transactions_proceed(self):
        """A decided transaction waits for a marker, for a write, or for its next attempt."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        waits = {outcome.transactional_id for outcome, _ in driver.markers}
        results = [held.result for held in driver.held]
        waits |= {Written(record).transactional_id for result in results for record in result.records}
        waits |= {outcome.transactional_id for result in results for outcome in result.outcomes}
        for name, transaction in self.live.items():
            if transaction.state in PREPARED:
                assert transaction.end is not None
                assert name in waits or ("completion", name) in driver.shard._state.timers
            elif transaction.is_pending:
                assert name in waits

    def end(self):
        """Without further failures every decided transaction is completed."""
        driver = self.driver
        driver.refused = None
        self.write_all()
        for _ in range(10):
            while driver.markers:
                outcome, partition = driver.markers.pop()
                self.apply_marker(outcome, partition)
                driver.answer_marker(outcome, partition, ErrorCode.NONE)
            driver.wait(driver.settings.marker_retry_backoff_max_ms)
        for transaction in self.live.values():
            assert transaction.state not in PREPARED
            assert not transaction.is_pending
        assert driver.parked <= self.lost
        for name, position in self.succeeded:
            states = [item.state for item in map(Written, driver.log[:position]) if item.transactional_id == name]
            ends = [item.state for item in map(Written, driver.log[position:]) if item.transactional_id == name]
            if states[-1] in PREPARED:
                assert ends[0] is END_OF[states[-1]]

    def teardown(self):
        if hasattr(self, "driver"):
            self.end()


TransactionMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestTransactions = TransactionMachine.TestCase


# Hypothesis prefers short sequences of rules. These walks are long, mostly with producers that are not fenced yet.

SEEDS = 60
STEPS = 250
WEIGHTS = {
    "transact": 6,
    "add": 3,
    "finish": 4,
    "init": 3,
    "hold": 2,
    "write": 6,
    "lose_write": 2,
    "time_out": 2,
    "mark": 8,
    "fail_marker": 2,
    "crash": 1,
    "wait": 2,
    "refill_producer_ids": 1,
}


def step(machine, rng, name):
    def chance(share):
        return rng.random() < share

    number = rng.choice((0, 2)) if chance(0.7) else rng.randrange(4)
    indexes = [rng.randrange(3) for _ in range(rng.randint(1, 3))]
    driver = machine.driver
    if name == "transact":
        machine.transact(number, indexes, is_commit=chance(0.6), bumps=chance(0.7))
    elif name == "add":
        machine.add(number, indexes, by_broker=chance(0.5))
    elif name == "finish":
        machine.finish(number, is_commit=chance(0.6), bumps=chance(0.7))
    elif name == "init":
        machine.init(number, goes_on=chance(0.4))
    elif name == "hold":
        machine.hold()
    elif name == "write" and driver.held:
        machine.write(is_last=chance(0.4))
    elif name == "lose_write":
        machine.lose_write(rng.choice((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR)))
    elif name == "time_out":
        driver.time_out(keeps_completions=True)
    elif name == "mark" and driver.markers:
        machine.mark(rng.randrange(6), is_unsupported=chance(0.1))
    elif name == "fail_marker" and driver.markers:
        machine.fail_marker(rng.randrange(6), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    elif name == "crash" and chance(0.5):
        machine.crash(rng.randrange(4), rng.randrange(4))
    elif name == "wait":
        machine.wait(rng.choice((100, 100, 100, 5_000, TIMEOUT_MS)) if chance(0.95) else EXPIRATION_MS)
    elif name == "refill_producer_ids":
        machine.refill_producer_ids(chance(0.8))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_long_walks(seed):
    walk(seed)


@pytest.mark.parametrize(
    ("part", "name"),
    [(TransactionShardState, "replay"), (TransactionShardState, "replicated_up_to"), (Transaction, "_set_fields")],
)
def test_a_broken_replay_is_noticed(monkeypatch, part, name):
    monkeypatch.setattr(part, name, lambda *args, **how: None)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            walk(seed)


def walk(seed):
    rng = random.Random(seed)
    machine = TransactionMachine()
    machine.begin(version=(2, 2, 1, 0)[seed % 4], epoch=rng.choice((-1, 5, MAX_EPOCH - 4, MAX_EPOCH - 2)))
    for _ in range(STEPS):
        step(machine, rng, rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
        machine.decided_transactions_proceed()
        machine.live_state_is_that_of_the_log()
    machine.end()
