"""Configurations that a client changes: they apply at once, are described with their sources, and outlive restarts."""

import itertools
import time

import pytest

from odradek.protocol.batches.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.records import build_batch, iter_records, read_header
from odradek.replication.metadata.store import run_now
from odradek.replication.metadata.znodes import decode_config
from odradek.server.stores.sqlite import SqliteMetadataStore
from odradek.server.tests.wire import EARLIEST, LATEST, Wire, until
from odradek.testing import OdradekBroker

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC_CONFIG, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = range(1, 6)
INT_TYPE = 3
numbers = itertools.count()


class Admin:
    """A client that alters and describes configurations, each with its own connection."""

    def __init__(self, broker):
        self.broker = broker

    def _ask(self, request):
        with Wire(self.broker.port) as wire:
            return wire.ask(request)

    def alter(self, kind, name, *operations, validate_only=False):
        """Alter by operations (property, operation, value). Return the error code."""
        configs = [
            IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (answer,) = self._ask(request).responses
        return answer.error_code

    def set(self, kind, name, **values):
        """Set properties, given by name with _ for the dots; None deletes one."""
        operations = [
            (key.replace("_", "."), *((DELETE, None) if value is None else (SET, str(value))))
            for key, value in values.items()
        ]
        assert self.alter(kind, name, *operations) == 0

    def describe(self, kind, name):
        """Describe all properties. Return the entries by name."""
        resource = DescribeConfigsRequestDescribeConfigsResource(resource_type=kind, resource_name=name)
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )
        (answer,) = self._ask(request).results
        assert answer.error_code == 0
        return {entry.name: entry for entry in answer.configs}

    def value(self, kind, name, key):
        """A value and its source."""
        entry = self.describe(kind, name)[key]
        return entry.value, entry.config_source


@pytest.fixture(scope="module")
def broker():
    properties = {
        "log.retention.check.interval.ms": "50",
        "log.initial.task.delay.ms": "0",
        "message.max.bytes": "50000",
        "log.segment.delete.delay.ms": "0",
    }
    with OdradekBroker(properties) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker):
    return Admin(broker)


@pytest.fixture
def wire(broker):
    with Wire(broker.port) as wire:
        yield wire


@pytest.fixture
def topic(wire):
    name = f"topic-{next(numbers)}"
    wire.create_topic(name)
    return name


def last_batch(wire, topic):
    """Header and records of the last batch of a topic's only partition."""
    data = memoryview(bytes(wire.fetch(topic, wire.offset(topic, LATEST) - 1).records))
    return read_header(data), list(iter_records(data))


# Topics


def test_a_topics_largest_batch_changes(admin, wire, topic):
    assert wire.produce(topic, b"x" * 3000).error_code == 0
    admin.set(TOPIC, topic, max_message_bytes=1000)
    assert wire.produce(topic, b"x" * 3000).error_code == ErrorCode.MESSAGE_TOO_LARGE
    admin.set(TOPIC, topic, max_message_bytes=100_000)
    assert wire.produce(topic, b"x" * 60_000).error_code == 0
    admin.set(TOPIC, topic, max_message_bytes=None)
    assert wire.produce(topic, b"x" * 60_000).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_topics_timestamp_type_changes(admin, wire, topic):
    long_ago_ms = int(time.time() * 1000) - 3_600_000
    wire.produce(topic, b"v", timestamp_ms=long_ago_ms)
    assert last_batch(wire, topic)[0].max_timestamp == long_ago_ms
    admin.set(TOPIC, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    answer = wire.produce(topic, b"v", timestamp_ms=long_ago_ms)
    header, (record,) = last_batch(wire, topic)
    assert header.is_log_append_time
    assert answer.log_append_time_ms == header.max_timestamp == record.timestamp >= before_ms
    admin.set(TOPIC, topic, message_timestamp_type="CreateTime", message_timestamp_before_max_ms=1000)
    assert wire.produce(topic, b"v", timestamp_ms=long_ago_ms).error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("sent", [Codec.NONE, Codec.LZ4], ids=lambda codec: codec.name)
def test_a_topics_compression_changes(admin, wire, topic, sent):
    batch = build_batch([(int(time.time() * 1000), b"k", b"value" * 50, (("h", b"1"),))] * 3, codec=sent)
    expected = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "zstd": Codec.ZSTD, "uncompressed": Codec.NONE}
    for name, codec in {**expected, "lz4": Codec.LZ4, "producer": sent}.items():
        admin.set(TOPIC, topic, compression_type=name)
        assert wire.produce(topic, batch=batch).error_code == 0
        header, records = last_batch(wire, topic)
        assert header.codec == codec
        assert [(record.key, record.value, record.headers) for record in records] == [
            (b"k", b"value" * 50, (("h", b"1"),))
        ] * 3


def test_a_compacted_topic_refuses_records_without_a_key(admin, wire, topic):
    assert wire.produce(topic, b"v", key=None).error_code == 0
    admin.set(TOPIC, topic, cleanup_policy="compact")
    answer = wire.produce(topic, b"v", key=None)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0]
    assert wire.produce(topic, b"v").error_code == 0
    assert wire.offset(topic, LATEST) == 2
    admin.set(TOPIC, topic, cleanup_policy="delete")
    assert wire.produce(topic, b"v", key=None).error_code == 0


def test_the_replicas_that_exist_suffice_for_min_insync_replicas(admin, wire, topic):
    """As in Kafka: on a single broker min.insync.replicas is kept, and has no effect."""
    admin.set(TOPIC, topic, min_insync_replicas=2)
    assert admin.value(TOPIC, topic, "min.insync.replicas") == ("2", TOPIC_CONFIG)
    for acks in (-1, 1):
        assert wire.produce(topic, b"v", acks=acks).error_code == 0
    assert admin.alter(TOPIC, topic, ("min.insync.replicas", SET, "0")) == ErrorCode.INVALID_CONFIG


def test_a_topics_retention_and_roll_times_change(broker, admin, wire, topic):
    def segments():
        return len(list((broker.data_dir / f"{topic}-0").glob("*.log")))

    now_ms = int(time.time() * 1000)
    wire.produce(topic, b"old", timestamp_ms=now_ms - 3_600_000)
    admin.set(TOPIC, topic, segment_ms=1)
    # Segments roll by the time of records: the next one is an hour later than the first.
    wire.produce(topic, b"new", timestamp_ms=now_ms)
    assert segments() == 2 and wire.offset(topic, EARLIEST) == 0
    admin.set(TOPIC, topic, retention_ms=600_000)
    until(lambda: wire.offset(topic, EARLIEST) == 1)
    until(lambda: segments() == 1)
    admin.set(TOPIC, topic, retention_ms=1)
    until(lambda: wire.offset(topic, EARLIEST) == 2)


def test_a_list_can_be_appended_to_and_subtracted_from(admin, topic):
    def policy():
        return admin.value(TOPIC, topic, "cleanup.policy")

    assert admin.alter(TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == 0
    assert policy() == ("delete,compact", TOPIC_CONFIG)
    assert admin.alter(TOPIC, topic, ("cleanup.policy", APPEND, "compact")) == 0
    assert admin.alter(TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert policy() == ("compact", TOPIC_CONFIG)
    assert admin.alter(TOPIC, topic, ("cleanup.policy", APPEND, "burn")) == ErrorCode.INVALID_CONFIG
    assert admin.alter(TOPIC, topic, ("retention.ms", APPEND, "1")) == ErrorCode.INVALID_CONFIG
    assert policy() == ("compact", TOPIC_CONFIG)
    assert admin.alter(TOPIC, topic, ("cleanup.policy", DELETE, "")) == 0
    assert policy() == ("delete", DEFAULT)


def test_validating_changes_nothing(admin, wire, topic):
    def ask(**change):
        operations = [(name.replace("_", "."), SET, value) for name, value in change.items()]
        return admin.alter(TOPIC, topic, *operations, validate_only=True)

    assert ask(max_message_bytes="1") == 0
    assert ask(max_message_bytes="many") == ErrorCode.INVALID_CONFIG
    assert ask(retention_ms="1", segment_ms="0") == ErrorCode.INVALID_CONFIG
    assert ask(no_such_thing="1") == ErrorCode.INVALID_CONFIG
    assert admin.value(TOPIC, topic, "max.message.bytes")[1] == STATIC
    assert wire.produce(topic, b"v").error_code == 0
    assert admin.alter(BROKER, "", ("message.max.bytes", SET, "1"), validate_only=True) == 0
    assert not admin.describe(BROKER, "")


def test_a_change_with_an_invalid_value_changes_nothing(admin, topic):
    changes = (("retention.ms", SET, "5"), ("segment.ms", SET, "never"))
    assert admin.alter(TOPIC, topic, *changes) == ErrorCode.INVALID_CONFIG
    assert admin.value(TOPIC, topic, "retention.ms")[1] == DEFAULT
    assert admin.alter(TOPIC, "no-such-topic", changes[0]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_alter_configs_replaces_all_properties(admin, wire, topic):
    admin.set(TOPIC, topic, retention_ms=5_000_000, segment_ms=6_000_000)
    configs = [AlterConfigsRequestAlterableConfig(name="segment.ms", value="7000000")]
    resource = AlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    for validate_only, expected in ((True, "6000000"), (False, "7000000")):
        (answer,) = wire.ask(AlterConfigsRequest(resources=[resource], validate_only=validate_only)).responses
        assert answer.error_code == 0
        assert admin.value(TOPIC, topic, "segment.ms") == (expected, TOPIC_CONFIG)
    assert admin.value(TOPIC, topic, "retention.ms")[1] == DEFAULT


# The broker


@pytest.fixture
def own():
    with OdradekBroker({"message.max.bytes": "50000", "log.retention.hours": "5"}) as broker:
        yield broker


def test_a_value_is_described_with_its_source_and_synonyms(own):
    admin = Admin(own)
    with Wire(own.port) as wire:
        wire.create_topic("t", max_message_bytes=10_000)
        wire.create_topic("plain")
    admin.set(BROKER, "", message_max_bytes=20_000)
    admin.set(BROKER, "1", message_max_bytes=30_000)
    entry = admin.describe(TOPIC, "t")["max.message.bytes"]
    assert (entry.value, entry.config_source) == ("10000", TOPIC_CONFIG)
    assert entry.documentation and entry.config_type == INT_TYPE
    assert [(one.name, one.value, one.source) for one in entry.synonyms] == [
        ("max.message.bytes", "10000", TOPIC_CONFIG),
        ("message.max.bytes", "30000", DYNAMIC_BROKER),
        ("message.max.bytes", "20000", DYNAMIC_DEFAULT),
        ("message.max.bytes", "50000", STATIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]
    assert admin.value(TOPIC, "plain", "max.message.bytes") == ("30000", DYNAMIC_BROKER)
    assert admin.value(BROKER, "1", "message.max.bytes") == ("30000", DYNAMIC_BROKER)
    assert admin.value(BROKER, "", "message.max.bytes") == ("20000", DYNAMIC_DEFAULT)
    assert admin.value(BROKER, "1", "log.retention.hours") == ("5", STATIC)
    # As in Kafka, the source of a value that was given in other units is DEFAULT.
    assert admin.value(TOPIC, "t", "retention.ms") == ("18000000", DEFAULT)
    assert admin.value(BROKER, "1", "num.partitions") == ("1", DEFAULT)
    assert admin.value(TOPIC, "t", "segment.bytes") == ("1073741824", DEFAULT)


def test_broker_values_apply_at_once_and_outlive_restarts(own):
    admin = Admin(own)

    def takes(size):
        with Wire(own.port) as wire:
            code = wire.produce("t", b"x" * size).error_code
        assert code in (0, ErrorCode.MESSAGE_TOO_LARGE)
        return code == 0

    with Wire(own.port) as wire:
        wire.create_topic("t")
    assert takes(40_000) and not takes(60_000)
    admin.set(BROKER, "", message_max_bytes=20_000)
    assert not takes(40_000) and takes(15_000)
    admin.set(BROKER, "1", message_max_bytes=70_000)
    assert takes(60_000)
    for clean in (True, False):
        own.restart(clean=clean)
        assert takes(60_000) and not takes(80_000)
    admin = Admin(own)
    admin.set(BROKER, "1", message_max_bytes=None)
    assert not takes(40_000) and takes(15_000)
    admin.set(BROKER, "", message_max_bytes=None)
    assert takes(40_000) and not takes(60_000)


def test_a_dynamic_value_replaces_its_synonym_in_other_units(own):
    admin = Admin(own)
    with Wire(own.port) as wire:
        wire.create_topic("t")
        wire.produce("t", b"v", timestamp_ms=int(time.time() * 1000) - 3_600_000)
    admin.set(BROKER, "", log_retention_ms=1000)
    assert admin.value(TOPIC, "t", "retention.ms") == ("1000", DYNAMIC_DEFAULT)
    own.restart()
    assert Admin(own).value(TOPIC, "t", "retention.ms") == ("1000", DYNAMIC_DEFAULT)


def test_forbidden_and_invalid_broker_changes_are_refused(admin):
    assert admin.alter(BROKER, "1", ("log.dirs", SET, "/nowhere")) == ErrorCode.INVALID_REQUEST
    assert admin.alter(BROKER, "1", ("num.partitions", SET, "3")) == ErrorCode.INVALID_REQUEST
    assert admin.alter(BROKER, "7", ("message.max.bytes", SET, "3")) == ErrorCode.INVALID_REQUEST
    assert admin.alter(BROKER, "1", ("message.max.bytes", SET, "-5")) == ErrorCode.INVALID_REQUEST
    entries = admin.describe(BROKER, "1")
    assert entries["log.dirs"].read_only and not entries["message.max.bytes"].read_only


def test_threads_change_by_a_factor_of_two_at_a_time(admin):
    for name, current in (("log.cleaner.threads", 1), ("num.io.threads", 8)):
        for value in (0, current * 2 + 1, current // 2 - 1):
            assert admin.alter(BROKER, "", (name, SET, str(value))) == ErrorCode.INVALID_REQUEST
        for value in (current * 2, current * 4, current * 2, current):
            assert admin.alter(BROKER, "", (name, SET, str(value))) == 0
        assert admin.alter(BROKER, "", (name, DELETE, None)) == 0


def test_compaction_properties_apply_at_once_and_after_a_restart():
    configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, "internal_segment_bytes": 300}

    def checkpoint(broker):
        path = broker.data_dir / "cleaner-offset-checkpoint"
        return path.read_text() if path.exists() else ""

    def fill(broker, count):
        with Wire(broker.port) as wire:
            for _ in range(count):
                assert wire.produce("t", b"x" * 100, key=b"a").error_code == 0

    with OdradekBroker({"log.cleaner.backoff.ms": "100000000"}) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t", **configs)
        fill(broker, 6)
        Admin(broker).set(BROKER, "", log_cleaner_backoff_ms=20)
        until(lambda: "t 0 5" in checkpoint(broker))
        broker.restart()
        fill(broker, 4)
        until(lambda: "t 0 9" in checkpoint(broker))


# Switches


def test_auto_creation_needs_both_the_requests_and_the_brokers_permission():
    def asked(wire, name, allow):
        topic = MetadataRequestTopic(name=name)
        return wire.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=allow), 9).topics[0].error_code

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with OdradekBroker({"num.partitions": "3"}) as broker, Wire(broker.port) as wire:
        assert asked(wire, "made", allow=False) == unknown
        asked(wire, "made", allow=True)
        until(lambda: asked(wire, "made", allow=False) == 0)
        assert len(wire.metadata("made").topics[0].partitions) == 3
        assert asked(wire, "no topic", allow=True) == ErrorCode.INVALID_TOPIC_EXCEPTION
    with OdradekBroker({"auto.create.topics.enable": "false"}) as broker, Wire(broker.port) as wire:
        assert asked(wire, "made", allow=True) == unknown
        assert asked(wire, "made", allow=False) == unknown


def test_topics_cannot_be_deleted_if_deletion_is_disabled():
    state = DeleteTopicsRequestDeleteTopicState(name="t")
    with OdradekBroker({"delete.topic.enable": "false"}) as broker, Wire(broker.port) as wire:
        wire.create_topic("t")
        (answer,) = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000)).responses
        assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
        (answer,) = wire.ask(request, 2).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert wire.produce("t", b"v").error_code == 0


@pytest.mark.parametrize("mechanism", ["", "plain.", "scram-sha-256."])
def test_the_users_of_a_listener_are_stored_encrypted_or_refused(tmp_path, mechanism):
    name = f"listener.name.plaintext.{mechanism}sasl.jaas.config"
    change = (name, SET, "Module required user_a=hunter2;")
    with OdradekBroker(directory=tmp_path) as broker:
        assert Admin(broker).alter(BROKER, "1", change) == ErrorCode.INVALID_REQUEST
    with OdradekBroker({"password.encoder.secret": "a secret"}, directory=tmp_path) as broker:
        admin = Admin(broker)
        assert admin.alter(BROKER, "", change) == ErrorCode.INVALID_REQUEST
        assert admin.alter(BROKER, "1", change) == 0
        described = admin.describe(BROKER, "1")[name]
        assert (described.value, described.is_sensitive) == (None, True)
        assert [synonym.value for synonym in described.synonyms] == [None]
        for path in broker.data_dir.glob("odradek-metadata.db*"):
            assert b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.jaas.config", "Module required;"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("sasl.kerberos.service.name", "kafka"),
        ("ssl.client.auth", "required"),
        ("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384"),
        ("ssl.enabled.protocols", "TLSv1.3"),
    ],
)
def test_properties_of_security_are_dynamic_for_a_listener_of_one_broker_only(admin, name, value):
    """Also for a listener that does not exist, as in Apache Kafka."""
    assert admin.alter(BROKER, "1", (name, SET, value)) == ErrorCode.INVALID_REQUEST
    assert admin.alter(BROKER, "", (f"listener.name.other.{name}", SET, value)) == ErrorCode.INVALID_REQUEST
    assert not admin.describe(BROKER, "1")[name].read_only
    if name != "sasl.jaas.config":
        assert admin.alter(BROKER, "1", (f"listener.name.other.{name}", SET, value)) == 0
        described = admin.describe(BROKER, "1")[f"listener.name.other.{name}"]
        assert (described.value, described.config_source) == (value, DYNAMIC_BROKER)


@pytest.mark.parametrize(
    ("name", "value"),
    [("connections.max.reauth.ms", "1000"), ("ssl.principal.mapping.rules", "DEFAULT")],
)
def test_other_properties_of_security_are_not_dynamic(admin, name, value):
    for prefix in ("", "listener.name.plaintext.", "listener.name.plaintext.plain."):
        assert admin.alter(BROKER, "1", (f"{prefix}{name}", SET, value)) == ErrorCode.INVALID_REQUEST


OAUTH_SECRETS = ("client.credentials.client.secret", "assertion.private.key.passphrase")


@pytest.mark.parametrize("secret", OAUTH_SECRETS)
def test_secrets_of_oauthbearer_are_not_dynamic_nor_stored(broker, admin, secret):
    for prefix in ("", "listener.name.plaintext.", "listener.name.plaintext.oauthbearer."):
        change = f"{prefix}sasl.oauthbearer.{secret}", SET, "hunter2"
        assert admin.alter(BROKER, "1", change) == ErrorCode.INVALID_REQUEST
    assert b"hunter2" not in (broker.data_dir / "odradek-metadata.db-wal").read_bytes()


def test_secrets_of_oauthbearer_are_not_described():
    prefixes = ("", "listener.name.plaintext.", "listener.name.plaintext.oauthbearer.")
    names = [f"{prefix}sasl.oauthbearer.{secret}" for secret in OAUTH_SECRETS for prefix in prefixes]
    with OdradekBroker(dict.fromkeys(names, "hunter2")) as broker:
        entries = Admin(broker).describe(BROKER, "1")
        for secret in OAUTH_SECRETS:
            entry = entries[f"sasl.oauthbearer.{secret}"]
            assert (entry.is_sensitive, entry.value) == (True, None)
        assert "hunter2" not in repr(entries)
        assert "hunter2" not in broker.log_text()


def test_a_wrong_secret_does_not_lose_the_passwords_at_the_next_change(tmp_path):
    name, other = "listener.name.tls.ssl.keystore.password", "listener.name.tls.ssl.key.password"

    def stored(data_dir):
        store = SqliteMetadataStore(data_dir, lambda: 1)
        try:
            return decode_config(run_now(store.get("/config/brokers/1")).data)
        finally:
            run_now(store.close())

    with OdradekBroker({"password.encoder.secret": "right"}, directory=tmp_path) as broker:
        admin = Admin(broker)
        assert admin.alter(BROKER, "1", (name, SET, "hunter2"), (other, SET, "hunter3")) == 0
        broker.stop()
        before = stored(broker.data_dir)
        broker.properties["password.encoder.secret"] = "wrong"
        broker.start()
        assert admin.alter(BROKER, "1", ("log.cleaner.threads", SET, "2"), (other, DELETE, None)) == 0
        broker.stop()
        assert stored(broker.data_dir) == {name: before[name], "log.cleaner.threads": "2"}
        broker.properties["password.encoder.secret"] = "right"
        broker.start()
        assert "ignoring stored password" not in broker.log_text().rpartition(" starting listeners=")[2]
