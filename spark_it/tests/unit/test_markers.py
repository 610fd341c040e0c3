"""The transactions of a batch, the markers that must exist, and their renewal."""

import json
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.exactly_once import markers as markers_module
from odradek.spark_it.exactly_once.markers import (
    ASSUMED_RETENTION_MS,
    BATCHES_TOPIC,
    RENEW_AFTER_S,
    MarkerRenewal,
    Markers,
    find_expiry_reason,
    read_initial_offsets,
)
from odradek.spark_it.exactly_once.slots import (
    BatchTransaction,
    MarkerError,
    OffsetTransaction,
    SinkTransaction,
    TransactionalSlot,
)
from odradek.spark_it.exactly_once.transactions import Clients, claim_slot, write_transaction
from odradek.spark_it.interfaces.marker import BatchMarker, make_marker_number
from odradek.spark_it.interfaces.sink import Claim, Range, SinkBatch, SinkError
from odradek.spark_it.kafka.cluster import KafkaCluster
from spark_it.tests.data import Topics
from spark_it.tests.unit.support import UNUSED, pipeline, transform

GENERATION = 29_000_000
WEEK_MS = 7 * 24 * 3_600_000
COUNT = transform("SELECT customer, count(*) n FROM orders GROUP BY customer")


def declared(name, servers="127.0.0.1:1", topic="orders", steps="", folder=None, tasks_max=3):
    text = f"""
name = "{name}"
bootstrap.servers = "{servers}"
tasks.max = {tasks_max}
[source.orders]
connector = "topic"
topics = "{topic}"
value.schema = "customer STRING"
{steps}
[sink]
connector = "topic"
topic = "out"
"""
    return pipeline(text, **({} if folder is None else {"folder": folder}))


def of(declared, kind):
    clients = Clients(",".join(declared.settings.bootstrap_servers), timeout_s=5)
    return Markers(declared, kind, clients), clients


def batch(number, *ranges):
    return SinkBatch(number, GENERATION, UNUSED, tuple(Range("orders", *one) for one in ranges) or None)


def write_initial_offsets(folder, text='{"orders":{"0":5,"1":0}}'):
    file = folder / "sources" / "0" / "0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\0v1\n" + text.encode())


def write_planned(folder, number, planned_ms, offsets):
    file = folder / "offsets" / str(number)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"v1\n{json.dumps({'batchTimestampMs': int(planned_ms)})}\n{json.dumps({'orders': offsets})}")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """planned(age_ms): markers of a pipeline whose batches 0 and 1 were planned that long ago. The broker retains
    offsets for a week."""
    monkeypatch.setattr(Markers, "fetch_retention_ms", lambda _: WEEK_MS)

    def made(age_ms, before=None):
        made = declared("shop", folder=tmp_path)
        folder = made.state_folder / "checkpoint" / str(GENERATION)
        if not folder.exists():
            write_initial_offsets(folder)
        at_ms = time.time() * 1000 - age_ms
        write_planned(folder, 0, at_ms, before or {"0": 5, "1": 4})
        write_planned(folder, 1, at_ms, {"0": 9, "1": 9, "2": 1, "3": 2})
        return of(made, TransactionKind.OFFSETS)[0]

    return made


def test_offset_transactions(planned):
    found = planned(age_ms=0)
    transactions = found.make_transactions(batch(1, (0, 5, 9), (1, 4, 9), (2, 0, 1), (3, 1, 2)))
    assert [(transaction.slot, transaction.start, transaction.end) for transaction in transactions[:2]] == [
        (TransactionalSlot("shop:orders-0", "shop", "orders", 0), 5, 9),
        (TransactionalSlot("shop:orders-1", "shop", "orders", 1), 4, 9),
    ]
    # Partition 0 is still at its initial offset, 5. Partitions 2 and 3 are new, so any start is their first.
    assert [transaction.is_first for transaction in transactions] == [True, False, True, True]
    assert {(transaction.generation, transaction.batch, transaction.resets) for transaction in transactions} == {
        (GENERATION, 1, "reset --to committed or reset --to earliest")
    }
    assert all(transaction.is_first for transaction in found.make_transactions(batch(0, (0, 7, 9), (1, 4, 9))))
    with pytest.raises(SinkError, match="batch 1 has no offset ranges"):
        found.make_transactions(batch(1))
    with pytest.raises(SinkError, match="batch 1 has several ranges of one partition"):
        found.make_transactions(batch(1, (0, 5, 9), (0, 9, 12)))


def test_a_new_partition_without_records_gets_its_marker_before_the_batch(planned, monkeypatch):
    """A later batch has the partition's first records, but nothing shows that they are the first."""
    claimed = []
    monkeypatch.setattr(markers_module, "claim_slot", lambda slot, first, *_: claimed.append((slot.partition, first)))
    # Partition 3 is new and has no record; partition 2 is new and has one; the others are not new.
    given = batch(1, (0, 5, 9), (1, 4, 9), (2, 0, 1))
    planned(0).make_transactions(given)
    assert claimed == [(3, BatchMarker(2, GENERATION))]
    planned(0, before={"0": 5, "1": 4, "3": 2}).make_transactions(given)
    planned(WEEK_MS * 0.51).make_transactions(given)
    assert len(claimed) == 1
    # In the first batch a partition is new if the source has no initial offset for it.
    planned(0, before={"0": 5, "1": 4, "2": 0, "3": 2}).make_transactions(batch(0, (1, 0, 4)))
    assert claimed[1:] == [(3, BatchMarker(2, GENERATION))]


def test_offset_transactions_of_a_batch_whose_markers_may_have_expired(planned):
    """Records of a new partition may have been written by a run whose markers have expired."""
    given = batch(1, (0, 5, 9), (1, 4, 9), (2, 0, 1), (3, 1, 2))
    for age_ms, first in (
        (WEEK_MS * 0.49, [True, False, True, True]),
        (WEEK_MS * 0.51, [False] * 4),
        # The clock of the machine that planned the batch is ahead by more than the limit.
        (-WEEK_MS * 0.51, [False] * 4),
    ):
        found = planned(age_ms)
        assert [transaction.is_first for transaction in found.make_transactions(given)] == first
        assert [transaction.is_first for transaction in found.make_transactions(batch(0, (0, 5, 9)))] == first[:1]
    # Partition 3 was in the batch before, so it is not new, whatever its first offset.
    found = planned(0, before={"0": 5, "1": 4, "3": 1})
    assert [transaction.is_first for transaction in found.make_transactions(given)] == [True, False, True, False]


@pytest.mark.parametrize(("retention_ms", "kept"), [(None, "24 hours (assumed, "), (WEEK_MS, "168 hours (off")])
def test_how_old_a_batch_may_be(retention_ms, kept):
    limit_ms = (ASSUMED_RETENTION_MS if retention_ms is None else retention_ms) // 2
    for clock in (1, -1):
        assert find_expiry_reason(10**12, 10**12 + clock * (limit_ms - 1), retention_ms) is None
        why = find_expiry_reason(10**12, 10**12 + clock * limit_ms, retention_ms)
        assert why is not None and f"retains offsets, {kept}" in why


def test_batch_transactions():
    made = declared("shop", steps=COUNT)
    found, _ = of(made, TransactionKind.BATCHES)
    first, second = found.make_transactions(batch(0)), found.make_transactions(batch(1))
    assert [transaction.slot for transaction in first] == [
        TransactionalSlot(f"shop:p{part}", "shop:batches", BATCHES_TOPIC, part) for part in range(3)
    ]
    # The first run of a state commits a marker for each part.
    assert {(transaction.end, transaction.is_first) for transaction in first} == {
        (make_marker_number(GENERATION, 0), False)
    }
    assert {(transaction.end, transaction.is_first) for transaction in second} == {
        (make_marker_number(GENERATION, 1), False)
    }
    assert first[0].resets == "reset --to earliest or reset --to committed"


def test_no_two_pipelines_have_a_transactional_id_in_common():
    """Names of pipelines and of topics may contain hyphens."""
    slots = [
        of(declared(name, topic=topic), TransactionKind.OFFSETS)[0]
        .make_transactions(SinkBatch(0, 1, UNUSED, (Range(topic, 0, 0, 1),)))[0]
        .slot
        for name, topic in (("orders", "eu-clean"), ("orders-eu", "clean"))
    ]
    assert slots[0].transactional_id != slots[1].transactional_id


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"orders": 1}', '{"orders": {"a": 1}}'])
def test_missing_or_damaged_initial_offsets(tmp_path, text):
    if text is not None:
        write_initial_offsets(tmp_path, text)
    assert read_initial_offsets(tmp_path) == {}


@pytest.mark.side_by_side
def test_the_marker_topic_is_created_and_extended(start_broker, unique):
    servers = start_broker().bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})

    def parts():
        return len(admin.list_topics(BATCHES_TOPIC, 30).topics[BATCHES_TOPIC].partitions)

    for tasks_max, expected in ((2, 2), (2, 2), (5, 5), (3, 5)):
        made = declared(unique, servers, steps=COUNT, tasks_max=tasks_max)
        found, clients = of(made, TransactionKind.BATCHES)
        found.prepare()
        assert parts() == expected
        found.claim(Claim("", GENERATION, is_new=True))
        for transaction in found.make_transactions(batch(0)):
            write_transaction(transaction, [], clients)
    found, clients = of(declared(unique, servers, steps=COUNT, tasks_max=5), TransactionKind.BATCHES)
    for transaction in found.make_transactions(batch(1)):
        assert write_transaction(transaction, [], clients).is_new
    admin.delete_consumer_groups([f"{unique}:batches"])[f"{unique}:batches"].result(30)
    for transaction in found.make_transactions(batch(2)):
        with pytest.raises(MarkerError, match=r"is gone, expired or deleted.*; reset --to earliest or reset"):
            write_transaction(transaction, [], clients)


class Refusing:
    """An AdminClient whose marker topic has `parts` partitions, and which fails to create topics with `answer`."""

    def __init__(self, parts, answer):
        self.parts, self.answer = parts, answer

    def list_topics(self, *_, **__):
        return SimpleNamespace(topics={BATCHES_TOPIC: SimpleNamespace(partitions=range(self.parts))})

    def create_topics(self, *_, **__):
        future = Future()
        future.set_exception(self.answer)
        return {BATCHES_TOPIC: future}


@pytest.mark.parametrize(
    ("answer", "said", "may_pass"),
    [
        (KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)), "; create it before the run", False),
        (KafkaException(KafkaError(KafkaError.NOT_CONTROLLER)), "controller", True),
        (TimeoutError(), "no response", True),
    ],
)
def test_a_marker_topic_that_cannot_be_created(monkeypatch, answer, said, may_pass):
    found, _ = of(declared("shop", steps=COUNT), TransactionKind.BATCHES)
    monkeypatch.setattr(markers_module, "AdminClient", lambda _: Refusing(2, answer))
    with pytest.raises(SinkError, match=r"cannot create topic __pipeline_batches with 3 partitions at 127\.") as failed:
        found.prepare()
    assert said in str(failed.value) and failed.value.is_retriable == may_pass
    monkeypatch.setattr(markers_module, "AdminClient", lambda _: Refusing(3, answer))
    found.prepare()


@pytest.mark.slow
def test_a_broker_that_is_down():
    for kind in TransactionKind:
        found, _ = of(declared("shop", steps=COUNT if kind is TransactionKind.BATCHES else ""), kind)
        found._clients = Clients("127.0.0.1:1", timeout_s=0.2)
        with pytest.raises(SinkError, match=r"127\.0\.0\.1:1") as failed:
            found.list_old_slots(0)
        assert failed.value.is_retriable


@pytest.mark.side_by_side
@pytest.mark.parametrize("kind", list(TransactionKind))
def test_two_copies_that_start_before_the_first_record(broker, topics, unique, kind):
    """The copy that claims the first slot continues. After a reset the other one replaces it in every slot."""
    topic = topics.create(unique, 3)
    steps = COUNT if kind is TransactionKind.BATCHES else ""
    made = declared(unique, broker.bootstrap_servers, topic=topic, steps=steps)
    found, clients = of(made, kind)
    found.prepare()
    begins = {(topic, part): 0 for part in range(3)} if kind is TransactionKind.OFFSETS else {}

    def claims(state, generation=GENERATION, replaced=frozenset()):
        found.claim(Claim(state, generation, replaced, is_new=True, start_offsets=begins))
        assert found.read_owners() == {state} and len(found._read_markers(found.list_slots())) == 3

    assert found.read_owners() == set() and found.read_newest() == 0
    claims("one")
    claims("one")
    with pytest.raises(MarkerError, match="at the same time by another copy"):
        claims("two")

    def write_batch(state, generation=GENERATION):
        for slot in found.list_slots():
            common = {"slot": slot, "generation": generation, "batch": 0, "is_first": True, "resets": "reset"}
            transaction: SinkTransaction
            if kind is TransactionKind.OFFSETS:
                transaction = OffsetTransaction(start=0, end=9, state=state, **common)
            else:
                transaction = BatchTransaction(end=make_marker_number(generation, 0), state=state, **common)
            yield write_transaction(transaction, [], clients).is_new

    with pytest.raises(MarkerError, match="belongs to another copy"):
        next(write_batch("two"))
    assert list(write_batch("one")) == [True] * 3 and list(write_batch("one")) == [False] * 3
    if kind is TransactionKind.OFFSETS:
        KafkaCluster(made.settings).commit(unique, begins, BatchMarker(0, GENERATION, state="two").metadata)
    claims("two", replaced={"one"})
    with pytest.raises(MarkerError, match="belongs to another copy"):
        next(write_batch("one"))
    assert list(write_batch("two")) == [True] * 3


@pytest.mark.parametrize(
    ("owner", "replaced", "claimed"), [("two", set(), None), ("two", {"two"}, {1, 2}), ("", set(), {1, 2})]
)
def test_a_slot_that_another_copy_has_claimed(monkeypatch, owner, replaced, claimed):
    """The other copy has another lowest slot, so both reach the remaining slots."""
    found, _ = of(declared("shop"), TransactionKind.OFFSETS)
    slots = [TransactionalSlot(f"shop:orders-{part}", "shop", "orders", part) for part in range(3)]
    markers = {slots[0]: BatchMarker(0, GENERATION, state="one"), slots[1]: BatchMarker(0, GENERATION, state=owner)}
    monkeypatch.setattr(found, "list_slots", lambda: slots)
    monkeypatch.setattr(found, "_read_markers", lambda *_, **__: markers)
    monkeypatch.setattr(markers_module, "claim_slot", lambda *_: None)
    committed = []
    monkeypatch.setattr(KafkaCluster, "commit", lambda _, group, places, metadata: committed.append(places))
    claim = Claim("one", GENERATION, replaced, is_new=True, start_offsets={("orders", part): 0 for part in range(3)})
    if claimed is None:
        with pytest.raises(MarkerError, match="offset of group shop for orders-1 was claimed at the same time"):
            found.claim(claim)
        assert committed == []
    else:
        found.claim(claim)
        assert [{part for _, part in places} for places in committed] == [claimed]


@pytest.mark.side_by_side
@pytest.mark.parametrize("minutes", [2, 10080])
def test_the_retention_of_offsets(start_broker, minutes):
    servers = start_broker({"offsets.retention.minutes": str(minutes)}).bootstrap_servers
    found, _ = of(declared("shop", servers), TransactionKind.OFFSETS)
    assert found.fetch_retention_ms() == minutes * 60_000
    # Markers are renewed after a quarter of it.
    now_ms = int(time.time() * 1000)
    slot = TransactionalSlot("t", "shop", "orders", 0)
    found.list_slots = lambda: [slot]
    found._read_markers = lambda _: {slot: BatchMarker(9, at_ms=now_ms - 31_000)}
    assert found.list_old_slots(now_ms) == ([slot] if minutes == 2 else [])


def test_a_broker_that_does_not_report_the_retention_of_offsets(monkeypatch):
    monkeypatch.setattr(AdminClient, "list_topics", lambda *_, **__: SimpleNamespace(brokers={1: None}))
    refused = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)))
    monkeypatch.setattr(AdminClient, "describe_configs", lambda *_, **__: {"1": refused})
    found, _ = of(declared("shop"), TransactionKind.OFFSETS)
    assert found.fetch_retention_ms() is None


@pytest.fixture
def kept(broker, unique):
    """A pipeline with markers for its first two partitions, and none for the third."""
    servers = broker.bootstrap_servers
    Topics(servers).create(unique, 3)
    made = declared(unique, servers, topic=unique)
    found, clients = of(made, TransactionKind.OFFSETS)
    for part in (0, 1):
        claim_slot(found.list_slots()[part], BatchMarker(9, GENERATION), frozenset(), clients)
    renewal = MarkerRenewal(found, clients, threading.Lock())
    yield made, found, renewal
    renewal.close()


def test_markers_are_renewed_when_they_are_old(kept, unique):
    made, found, renewal = kept
    now_ms = int(time.time() * 1000)
    later_ms = now_ms + int(RENEW_AFTER_S * 1000) + 60_000
    assert renewal.renew_old(now_ms) == 0
    assert [slot.partition for slot in found.list_old_slots(later_ms)] == [0, 1]
    assert renewal.renew_old(later_ms) == 2
    # A marker that a reset has committed has no time.
    cluster = KafkaCluster(made.settings)
    cluster.commit(unique, {(unique, 2): 4})
    assert [slot.partition for slot in found.list_old_slots(now_ms)] == [2]
    assert renewal.renew_old(now_ms) == 1
    assert renewal.renew_old(now_ms) == 0
    assert cluster.fetch_committed(unique, [(unique, part) for part in range(3)]) == {
        (unique, 0): 9,
        (unique, 1): 9,
        (unique, 2): 4,
    }


def test_a_renewal_waits_for_a_batch_and_ends_at_once(kept, monkeypatch):
    _, found, _ = kept
    monkeypatch.setattr(markers_module, "RENEW_AFTER_S", -60.0)
    lock, renewed = threading.Lock(), threading.Semaphore(0)
    monkeypatch.setattr(markers_module, "renew_marker", lambda slot, clients: renewed.release())
    renewal = MarkerRenewal(found, found._clients, lock)
    with lock:
        renewal.start()
        assert not renewed.acquire(timeout=0.5)
    assert renewed.acquire(timeout=30) and renewed.acquire(timeout=30)
    renewal.close()
    assert not renewal._thread.is_alive()
