"""GetTelemetrySubscriptions and PushTelemetry with a controlled clock."""

import struct
from typing import Any

import pytest
from twisted.internet.task import Clock

from odradek.protocol.batches.compression import Codec, compress
from odradek.protocol.errors import ErrorCode as E
from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from odradek.protocol.messages.push_telemetry import PushTelemetryRequest
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CLIENT_METRICS, EntityConfigs
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.server.request import RequestContext
from odradek.server.telemetry import instances
from odradek.server.telemetry.client_telemetry import ClientTelemetry
from odradek.server.telemetry.instances import compute_subscription_id
from odradek.server.telemetry.subscriptions import MAX_SUBSCRIPTIONS, Subscriptions, adopt_subscriptions
from odradek.server.telemetry.tests.otlp_messages import encode, gauge, number
from odradek.server.work.record_work import RecordWork
from odradek.server.work.slices import Slices

METRICS = encode(gauge("org.apache.kafka.a", number(1.5, topic="t")))
MAX_BYTES = 20_000


class World:
    """The telemetry of a broker with a memory store, where threads run at once."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.now_ms = 5_000_000
        self.store = MemoryMetadataServer().connect()
        run_now(prepare_store(self.store, "a-cluster"))
        self.entities = EntityConfigs(
            self.store, lambda description, work: None, (CLIENT_METRICS,), znodes.CLIENT_METRICS_CHANGES
        )
        run_now(self.entities.start())
        self.subscriptions = Subscriptions(self.store, self.entities, lambda: self.now_ms)
        self.slices = Slices(self.clock, lambda: self.now_ms / 1000)
        self.made = 0
        self.threads = 0
        self.telemetry = ClientTelemetry(
            self.subscriptions,
            max_bytes=MAX_BYTES,
            max_series=100,
            monotonic_ms=lambda: self.now_ms,
            random_uuid=self.make_id,
            record_work=RecordWork(self.slices, self.run_in_thread),
            slices=self.slices,
        )
        self.context = self.connect()

    def make_id(self) -> bytes:
        self.made += 1
        return struct.pack(">QQ", 7, self.made)

    def run_in_thread(self, work: Any, done: Any) -> None:
        self.threads += 1
        work()
        done(None)

    def connect(self, client_id: str = "app", port: int = 4444) -> RequestContext:
        context = RequestContext("10.0.0.1", "PLAINTEXT", client_port=port)
        context.client_id = client_id
        context.client_software = ("a-client", "1.2")
        return context

    def subscribe(self, name: str = "s", **configs: str) -> None:
        stored = {key.replace("_", "."): value for key, value in configs.items()}
        self.subscriptions.check(name, stored)
        run_now(self.subscriptions.put(name, stored))

    def get(self, instance_id: bytes = bytes(16), context: RequestContext | None = None) -> Any:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
        try:
            return self.telemetry.get_subscriptions(context or self.context, request)
        except KafkaError as error:
            return error.code

    def push(
        self,
        instance_id: bytes,
        subscription_id: int,
        metrics: bytes = METRICS,
        codec: int = Codec.NONE,
        *,
        terminating: bool = False,
        context: RequestContext | None = None,
    ) -> int:
        request = PushTelemetryRequest(
            client_instance_id=instance_id,
            subscription_id=subscription_id,
            terminating=terminating,
            compression_type=codec,
            metrics=metrics,
        )
        try:
            reply: Any = self.telemetry.push(context or self.context, request)
        except KafkaError as error:
            return error.code
        if not hasattr(reply, "addBoth"):
            return int(reply.error_code)
        results: list[Any] = []
        reply.addBoth(results.append)
        for _ in range(10_000):
            if results:
                break
            self.clock.advance(0)
        (result,) = results
        value = getattr(result, "value", result)
        if isinstance(value, KafkaError):
            return value.code
        return int(value.error_code)

    def names(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of all series, by the name of their family."""
        return {family.name: [dict(sample.labels) for sample in family.samples] for family in self.telemetry.collect()}

    def remove_idle(self) -> None:
        self.telemetry.remove_idle()
        for _ in range(100):
            self.clock.advance(0)


@pytest.fixture
def world() -> World:
    return World()


def test_without_subscriptions_a_client_asks_again_after_five_minutes(world: World) -> None:
    found = world.get()
    assert (found.requested_metrics, found.push_interval_ms, found.telemetry_max_bytes) == ([], 300_000, MAX_BYTES)
    assert found.accepted_compression_types == [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]
    assert found.delta_temporality is False
    assert world.get(found.client_instance_id) == E.THROTTLING_QUOTA_EXCEEDED
    world.now_ms += 299_999
    assert world.get(found.client_instance_id) == E.THROTTLING_QUOTA_EXCEEDED
    world.now_ms += 1
    assert world.get(found.client_instance_id).client_instance_id == found.client_instance_id
    assert world.telemetry.counts.throttled_requests == 2


def test_a_client_gets_the_metrics_of_all_subscriptions_that_match_at_the_shortest_interval(world: World) -> None:
    world.subscribe("one", metrics="b,a", interval_ms="9000")
    world.subscribe("two", metrics="c", interval_ms="4000", match="client_id=a.*,client_software_version=1\\.2")
    world.subscribe("three", metrics="d", interval_ms="100", match="client_source_port=5+")
    world.subscribe("four", metrics="e", match="client_source_address=10\\.0\\.0\\.2")
    found = world.get()
    assert (found.requested_metrics, found.push_interval_ms) == (["a", "b", "c"], 4000)
    other = world.get(context=world.connect("b", 55))
    assert (other.requested_metrics, other.push_interval_ms) == (["a", "b", "d"], 100)
    world.subscribe("all", metrics="*", match=f"client_software_name=a-client,client_instance_id={'A' * 10}.*")
    assert world.get(found.client_instance_id).requested_metrics == ["*"]


def test_the_subscription_id_is_that_of_apache_kafka() -> None:
    instance_id = bytes(range(16))
    assert compute_subscription_id(("a", "b"), 1000, instance_id) == 642696426
    assert compute_subscription_id(("*",), 500, instance_id) == -1421846341
    assert compute_subscription_id(("a", "b"), 500, instance_id) == 658554735


def test_a_change_of_subscriptions_is_returned_at_once_and_ends_earlier_pushes(world: World) -> None:
    world.subscribe(metrics="a", interval_ms="1000")
    before = world.get()
    assert world.push(before.client_instance_id, before.subscription_id) == E.NONE
    world.subscribe(metrics="b", interval_ms="1000")
    assert world.push(before.client_instance_id, before.subscription_id) == E.UNKNOWN_SUBSCRIPTION_ID
    after = world.get(before.client_instance_id)
    assert after.requested_metrics == ["b"]
    assert after.subscription_id != before.subscription_id
    assert world.telemetry.counts.unknown_subscription_requests == 1
    world.subscribe()
    assert world.get(before.client_instance_id).requested_metrics == []


def test_pushes_keep_the_interval(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="1000")
    found = world.get()
    ids = (found.client_instance_id, found.subscription_id)
    assert world.push(*ids) == E.NONE
    assert world.push(*ids) == E.THROTTLING_QUOTA_EXCEEDED
    assert world.get(ids[0]) == E.THROTTLING_QUOTA_EXCEEDED
    world.now_ms += 1000
    assert world.push(*ids) == E.NONE
    assert world.push(*ids, b"", terminating=True) == E.NONE
    assert world.telemetry.counts.throttled_requests == 2


def test_after_an_unknown_subscription_or_codec_the_client_may_ask_at_once(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="1000")
    found = world.get()
    ids = (found.client_instance_id, found.subscription_id)
    assert world.push(ids[0], 5) == E.UNKNOWN_SUBSCRIPTION_ID
    assert world.get(ids[0]).subscription_id == ids[1]
    assert world.get(ids[0]) == E.THROTTLING_QUOTA_EXCEEDED
    world.now_ms += 1000
    assert world.push(*ids, codec=9) == E.UNSUPPORTED_COMPRESSION_TYPE
    assert world.get(ids[0]).subscription_id == ids[1]


def test_after_its_last_push_a_client_instance_is_refused_once(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="1000")
    found = world.get()
    ids = (found.client_instance_id, found.subscription_id)
    assert world.push(*ids, terminating=True) == E.NONE
    assert world.push(*ids, terminating=True) == E.INVALID_REQUEST
    assert world.push(*ids) == E.INVALID_REQUEST
    world.now_ms += 1000
    assert world.push(*ids) == E.NONE


@pytest.mark.parametrize("instance_id", [bytes(16), bytes(15) + b"\1"])
def test_reserved_ids_are_refused(world: World, instance_id: bytes) -> None:
    assert world.push(instance_id, 1) == E.INVALID_REQUEST


@pytest.mark.parametrize("codec", Codec)
def test_metrics_of_each_codec_are_stored_with_the_labels_of_the_client(world: World, codec: Codec) -> None:
    world.subscribe(metrics="*")
    found = world.get(context=world.connect("c" * 1000))
    assert world.push(found.client_instance_id, found.subscription_id, compress(codec, METRICS), codec) == E.NONE
    assert world.names()["org_apache_kafka_a"] == [{
        "client_id": "c" * 128, "client_instance_id": "AAAAAAAAAAcAAAAAAAAAAQ", "client_software_name": "a-client",
        "client_software_version": "1.2", "topic": "t",
    }]  # fmt: skip
    assert world.telemetry.counts._replace(instances=0) == (0, 1, 1, 0, 0, 0, 0)


def test_metrics_that_are_too_large_or_cannot_be_decoded_are_refused(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="100")
    found = world.get()

    def push(metrics: bytes, codec: int = Codec.NONE) -> int:
        world.now_ms += 100
        return world.push(found.client_instance_id, found.subscription_id, metrics, codec)

    assert push(bytes(MAX_BYTES + 1)) == E.TELEMETRY_TOO_LARGE
    assert push(b"xxx") == E.INVALID_RECORD
    assert push(b"xxx", Codec.GZIP) == E.INVALID_RECORD
    assert push(compress(Codec.ZSTD, METRICS)[:-3], Codec.ZSTD) == E.INVALID_RECORD
    for codec in (Codec.GZIP, Codec.ZSTD):
        assert push(compress(codec, bytes(9 << 20)), codec) == E.TELEMETRY_TOO_LARGE
    assert push(compress(Codec.SNAPPY, METRICS), Codec.SNAPPY) == E.NONE
    assert world.telemetry.counts.invalid_pushes == 5
    assert list(world.names()) == ["kafka_client_info", "org_apache_kafka_a"]


def test_a_large_block_is_decompressed_on_a_thread(world: World) -> None:
    from cramjam import snappy

    world.subscribe(metrics="*")
    found = world.get()
    padding = bytes(snappy.compress_raw(METRICS + b"\x9a\x06\x80\x80\x40" + bytes(1 << 20)))
    world.telemetry._max_bytes = 1 << 20
    assert world.push(found.client_instance_id, found.subscription_id, padding, Codec.SNAPPY) == E.NONE
    assert world.threads == 1
    assert "org_apache_kafka_a" in world.names()


def test_series_expire_after_three_intervals_and_soon_after_the_last_push(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="40000")
    one, other = world.get(), world.get(context=world.connect())
    assert world.push(one.client_instance_id, one.subscription_id) == E.NONE
    assert world.push(other.client_instance_id, other.subscription_id) == E.NONE
    assert world.push(one.client_instance_id, one.subscription_id, b"", terminating=True) == E.NONE
    world.now_ms += 59_999
    world.remove_idle()
    assert world.telemetry.counts.series == 2
    world.now_ms += 1
    world.remove_idle()
    assert (world.telemetry.counts.series, world.telemetry.counts.instances) == (1, 2)
    world.now_ms += 60_000
    world.remove_idle()
    assert (world.telemetry.counts.series, world.telemetry.counts.instances) == (0, 0)


def test_the_last_push_may_have_metrics(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="400000")
    found = world.get()
    assert world.push(found.client_instance_id, found.subscription_id, terminating=True) == E.NONE
    assert world.telemetry.counts.series == 1
    world.now_ms += 60_000
    world.remove_idle()
    assert world.telemetry.counts.series == 0


def test_an_instance_ends_with_the_connection_that_has_created_it(world: World) -> None:
    world.subscribe(metrics="*", interval_ms="1000")
    first, second = world.connect(), world.connect()
    found = world.get(context=first)
    assert world.get(found.client_instance_id, second) == E.THROTTLING_QUOTA_EXCEEDED
    assert second.on_lost is None
    assert first.on_lost is not None
    first.on_lost(first)
    assert world.telemetry.counts.instances == 0
    assert world.get(found.client_instance_id, second).subscription_id == found.subscription_id


def test_the_number_of_instances_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MAX_INSTANCES", 3)
    ids = [world.get(context=world.connect()).client_instance_id for _ in range(3)]
    assert world.get(ids[0]) == E.THROTTLING_QUOTA_EXCEEDED
    world.get(context=world.connect())
    assert world.telemetry.counts.instances == 3
    assert world.get(ids[0]) == E.THROTTLING_QUOTA_EXCEEDED
    assert world.get(ids[1]) != E.THROTTLING_QUOTA_EXCEEDED


def test_ids_whose_text_begins_with_a_dash_are_not_given_out(world: World) -> None:
    ids = [b"\xf8" + bytes(15), b"\xf7" + bytes(15)]
    world.telemetry._instances._random_uuid = lambda: ids.pop(0)
    assert world.get().client_instance_id[:1] == b"\xf7"


def test_the_number_of_subscriptions_is_limited(world: World) -> None:
    for count in range(MAX_SUBSCRIPTIONS):
        world.subscribe(str(count), metrics="a")
    with pytest.raises(KafkaError, match="at most"):
        world.subscribe("another", metrics="a")
    world.subscribe("0", metrics="b")
    world.subscribe("1")
    world.subscribe("another", metrics="a")


def test_an_invalid_subscription_in_the_store_is_ignored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.entities.put("client-metrics/bad", {"interval.ms": "1"})
    world.entities.put("client-metrics/a%2Fb", {"metrics": "x"})
    assert world.subscriptions.list_names() == ["a/b"]
    assert world.subscriptions.find("bad") == {}
    assert "is ignored" in caplog.text


def test_valid_subscriptions_of_apache_kafka_are_adopted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.subscribe("kept", metrics="mine")
    theirs = {"metrics": "theirs", "interval.ms": "500"}
    found = {"kept": theirs, "bad": {"interval.ms": "1"}, "a/b": {"metrics": "x, x"}}
    run_now(adopt_subscriptions(world.store, found, lambda: world.now_ms))
    run_now(world.entities.start())
    assert world.subscriptions.list_names() == ["a/b", "kept"]
    assert world.subscriptions.find("kept") == {"metrics": "mine", "interval.ms": "500"}
    assert world.subscriptions.find("a/b") == {"metrics": "x"}
    assert "is not adopted name=bad" in caplog.text


def test_subscriptions_survive_a_restart(world: World) -> None:
    world.subscribe("s/1", metrics=" a , a", interval_ms="500")
    again = EntityConfigs(
        world.store, lambda description, work: None, (CLIENT_METRICS,), znodes.CLIENT_METRICS_CHANGES
    )
    run_now(again.start())
    assert Subscriptions(world.store, again, lambda: 0).find("s/1") == {"metrics": "a", "interval.ms": "500"}
