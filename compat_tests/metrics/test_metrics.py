"""Metrics of a broker: values after known requests, and names beside Apache Kafka under the JMX exporter."""

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests import limits, processes
from compat_tests.apache_kafka import jars
from compat_tests.apache_kafka.broker import QUICK_JVM, ApacheKafkaBroker
from compat_tests.conftest import NO_RETENTION_CHECKS, SHARED_PROPERTIES
from compat_tests.metrics_samples import Scrape, get_status, scrape
from compat_tests.security.test_sasl_wire import Client, ClosedError
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.records import build_batch
from odradek.server.tests.wire import Wire, request_frame, until
from odradek.testing import BrokerFailedError, OdradekBroker
from odradek.tools.cli.main import main

pytestmark = pytest.mark.timeout(limits.TEST_S)

RULES = Path(__file__).parents[1] / "apache_kafka" / "jmx_exporter"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
RECORDS = 1000
VALUE = b"x" * 100


@pytest.fixture(scope="module")
def measured() -> Iterator[OdradekBroker]:
    """A broker with metrics."""
    with OdradekBroker({**SHARED_PROPERTIES, **NO_RETENTION_CHECKS, "metrics.listener": "127.0.0.1:0"}) as broker:
        yield broker


def metrics(broker: OdradekBroker) -> Scrape:
    return scrape(f"{broker.metrics_url}/metrics")


def sum_partitions(found: Scrape, name: str, topic: str) -> float:
    return sum(value for labels, value in found.values[name].items() if ("topic", topic) in labels)


def produce(bootstrap_servers: str, topic: str, count: int = RECORDS, **settings: Any) -> None:
    """Write records to partition 0."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 50, **settings})
    for _ in range(count):
        producer.produce(topic, VALUE, partition=0)
    assert producer.flush(30) == 0


def consume(bootstrap_servers: str, topic: str, count: int = RECORDS, **settings: Any) -> None:
    """Read and commit records as a group."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest", **settings}
    )
    consumer.subscribe([topic])
    read = 0
    give_up_s = time.monotonic() + 60
    while read < count and time.monotonic() < give_up_s:
        read += len(consumer.consume(500, 1))
    assert read == count
    consumer.commit(asynchronous=False)
    consumer.close()


def await_records(reader: Consumer, count: int) -> None:
    """Read this number of records, in as many parts as they come."""
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(reader.consume(100, 1))
        return len(found) >= count

    until(has_all, limits.CONDITION_S)
    assert len(found) == count


def test_records_are_counted(measured, unique):
    topic = unique
    produce(measured.bootstrap_servers, topic)
    consume(measured.bootstrap_servers, topic)
    found = metrics(measured)
    prefix = "kafka_server_brokertopicmetrics"
    assert found.value(f"{prefix}_messagesin_total", topic=topic) == RECORDS
    size = sum_partitions(found, "kafka_log_log_size", topic)
    assert size > RECORDS * len(VALUE)
    assert found.value(f"{prefix}_bytesin_total", topic=topic) == size
    assert found.value(f"{prefix}_bytesout_total", topic=topic) >= size
    assert found.value(f"{prefix}_messagesin_total") >= RECORDS
    assert sum_partitions(found, "kafka_log_log_logendoffset", topic) == RECORDS
    assert found.value("kafka_coordinator_group_groupmetadatamanager_numoffsets") >= 1


def test_requests_are_counted_with_their_stages(measured, unique):
    topic = unique
    before = metrics(measured)
    produce(measured.bootstrap_servers, topic, acks="all")
    consume(measured.bootstrap_servers, topic)
    found = metrics(measured)
    name = "kafka_network_requestmetrics"

    def increase(metric: str, request: str) -> float:
        return sum(
            value - before.values.get(metric, {}).get(labels, 0.0)
            for labels, value in found.values[metric].items()
            if ("request", request) in labels
        )

    produces = increase(f"{name}_requests_total", "Produce")
    assert produces >= 1
    for stage in ("total", "requestqueue", "local", "remote", "responsequeue", "responsesend", "throttle"):
        assert increase(f"{name}_{stage}timems_count", "Produce") == produces
    assert increase(f"{name}_errors_total", "Produce") == produces
    total_ms = found.value(f"{name}_totaltimems", request="FetchConsumer", quantile="0.999")
    assert 0 < total_ms < 60_000
    requests = found.values[f"{name}_requests_total"]
    fetches = {
        request: sum(count for labels, count in requests.items() if ("request", request) in labels)
        for request in ("Fetch", "FetchConsumer", "FetchFollower")
    }
    assert fetches["FetchConsumer"] == fetches["Fetch"] > 0 == fetches["FetchFollower"]
    assert found.value(f"{name}_totaltimems_count", request="FetchConsumer") == found.value(
        f"{name}_totaltimems_count", request="Fetch"
    )


def test_a_refused_batch_is_counted(measured, unique):
    topic = unique
    produce(measured.bootstrap_servers, topic, 1)
    producer = Producer({"bootstrap.servers": measured.bootstrap_servers, "message.max.bytes": 4_000_000})
    errors: list[Any] = []
    producer.produce(topic, b"x" * 2_000_000, partition=0, on_delivery=lambda error, record: errors.append(error))
    producer.flush(30)
    assert errors[0].name() == "MSG_SIZE_TOO_LARGE"
    found = metrics(measured)
    assert found.value("kafka_server_brokertopicmetrics_bytesrejected_total", topic=topic) > 2_000_000
    assert found.value("kafka_network_requestmetrics_errors_total", request="Produce", error="MESSAGE_TOO_LARGE") >= 1


def test_the_lag_of_a_reader_that_commits_nothing(measured, unique):
    topic, client_id = unique, f"{unique}-reader"
    produce(measured.bootstrap_servers, topic, 100)
    reader = Consumer(
        {
            "bootstrap.servers": measured.bootstrap_servers,
            "client.id": client_id,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(topic, 0, 60)])
    await_records(reader, 40)
    labels = {"client_id": client_id, "topic": topic, "partition": "0"}
    until(lambda: metrics(measured).value("odradek_reader_lag", **labels) == 0)
    reader.close()
    produce(measured.bootstrap_servers, topic, 50)
    found = metrics(measured)
    assert found.value("odradek_reader_offset", **labels) == 100
    assert found.value("odradek_reader_lag", **labels) == 50
    assert abs(found.value("odradek_reader_last_fetch_timestamp_seconds", **labels) - time.time()) < 120


def test_the_lag_of_readers_by_the_command_line(measured, unique, capsys):
    topic, client_id = unique, f"{unique}-reader"
    produce(measured.bootstrap_servers, topic, 10)
    reader = Consumer({"bootstrap.servers": measured.bootstrap_servers, "client.id": client_id, "group.id": "unused"})
    reader.assign([TopicPartition(topic, 0, 4)])
    await_records(reader, 6)
    reader.close()
    produce(measured.bootstrap_servers, topic, 5)
    command = ["group", "lag", client_id, "--readers", "--json", "--bootstrap-server", measured.bootstrap_servers]
    assert main([*command, "--metrics-url", f"{measured.metrics_url}/metrics"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["topic"], row["partition"], row["lag"]) == (topic, 0, 15 - row["offset"])
    assert row["offset"] in (4, 10)


def test_a_scrape_of_some_metrics(measured, unique):
    produce(measured.bootstrap_servers, unique)
    url, every = f"{measured.metrics_url}/metrics", metrics(measured)
    for name in every.values:
        assert set(scrape(f"{url}?name[]={name}").values) == {name}
    names = ["kafka_log_log_size", "kafka_network_requestmetrics_requests_total", "unknown"]
    found = scrape(f"{url}?{'&'.join(f'name[]={name}' for name in names)}")
    assert set(found.values) == set(names[:2])
    assert found.values[names[0]] == every.values[names[0]]


def test_a_deleted_topic_remains_in_the_sums(measured, unique):
    topic = unique
    produce(measured.bootstrap_servers, topic)
    before = metrics(measured).value("kafka_server_brokertopicmetrics_messagesin_total")
    admin = AdminClient({"bootstrap.servers": measured.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    until(lambda: (("topic", topic),) not in metrics(measured).values[name])
    assert metrics(measured).value(name) == before


def test_authentications_and_quotas(unique):
    """Kafka's names are those of its MBeans under the rules of the exporter that has them, Strimzi's."""
    properties = {
        "metrics.listener": "127.0.0.1:0",
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="secret";',
    }
    with OdradekBroker(properties) as broker:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
        sasl = broker.addresses[1]
        produce(sasl, unique, 10, **login, **{"sasl.password": "secret"})
        refused = Producer({"bootstrap.servers": sasl, **login, "sasl.password": "wrong", "log_level": 0})
        name = "kafka_server_socket_server_metrics_failed_authentication_total"
        labels = {"listener": "SASL_PLAINTEXT", "networkProcessor": "0"}
        until(lambda: (refused.poll(0.1), metrics(broker).value(name, **labels) >= 1)[1])
        found = metrics(broker)
        assert found.value("kafka_server_socket_server_metrics_successful_authentication_total", **labels) >= 1
        assert "kafka_server_quota_byte_rate" not in found.values
        alter_quota(broker, "producer_byte_rate", 1e9)
        produce(broker.bootstrap_servers, unique, 1000, **{"client.id": "measured"})
        rate = metrics(broker).value("kafka_server_quota_byte_rate", resource="Produce", clientId="measured")
        assert rate > 1000


def test_the_credits_for_changes_of_topics(unique):
    with OdradekBroker({"metrics.listener": "127.0.0.1:0"}) as broker:
        alter_quota(broker, "controller_mutation_rate", 1)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "client.id": "measured"})
        admin.create_topics([NewTopic(unique, 50)])[unique].result(30)
        labels = {"resource": "ControllerMutation", "clientId": "measured"}
        # Kafka permits a burst of 11 windows of a second.
        assert -50 < metrics(broker).value("kafka_server_quota_tokens", **labels) < 0


def test_bytes_after_a_batch_are_no_conversion(measured, unique):
    name = "kafka_server_brokertopicmetrics_producemessageconversions_total"
    with Wire(measured.port) as wire:
        wire.create_topic(unique)
        assert wire.produce(unique, batch=build_batch([(1, None, b"x", ())]) + b"more").error_code == 0
    assert metrics(measured).value(name, topic=unique) == 0


def test_records_that_are_compressed_again(measured, unique):
    admin = AdminClient({"bootstrap.servers": measured.bootstrap_servers})
    topic = NewTopic(unique, 1, config={"compression.type": "lz4"})
    admin.create_topics([topic])[unique].result(30)
    name = "kafka_server_brokertopicmetrics_producemessageconversions_total"
    produce(measured.bootstrap_servers, unique, 20, **{"compression.type": "lz4"})
    assert metrics(measured).value(name, topic=unique) == 0
    produce(measured.bootstrap_servers, unique, 30, **{"compression.type": "gzip"})
    assert metrics(measured).value(name, topic=unique) == 30


def test_a_connection_whose_session_has_expired(unique):
    properties = {
        "metrics.listener": "127.0.0.1:0",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="alice-secret";',
        # Longer than a busy machine takes for the first request.
        "connections.max.reauth.ms": "3000",
    }
    name = "kafka_network_socketserver_expiredconnectionskilledcount"
    prefix = "kafka_server_socket_server_metrics"
    labels = {"listener": "SASL_PLAINTEXT", "networkProcessor": "0"}
    with OdradekBroker(properties) as broker, Client(broker.port) as client:
        with Client(broker.port) as other:
            assert other.log_in().code == 0
            assert other.log_in(b"\0alice\0wrong").code == ErrorCode.SASL_AUTHENTICATION_FAILED
        found = metrics(broker)
        assert found.value(f"{prefix}_failed_reauthentication_total", **labels) == 1
        assert found.value(f"{prefix}_failed_authentication_total", **labels) == 0
        assert client.log_in().code == 0
        assert client.is_served and metrics(broker).value(name) == 0
        with pytest.raises(ClosedError):
            until(lambda: not client.is_served)
        assert metrics(broker).value(name) == 1


def test_the_sockets_of_a_listener(unique):
    with OdradekBroker({"metrics.listener": "127.0.0.1:0"}) as broker:
        labels = {"listener": "PLAINTEXT", "networkProcessor": "0"}
        prefix = "kafka_server_socket_server_metrics"

        def read(found: Scrape) -> list[float]:
            names = ("connection_creation", "connection_close", "response", "request", "incoming_byte", "outgoing_byte")
            return [found.value(f"{prefix}_{name}_total", **labels) for name in names]

        assert read(metrics(broker)) == [0] * 6
        frames = [request_frame(ApiVersionsRequest(), 0, number) for number in range(3)]
        received = 0
        with socket.create_connection(("127.0.0.1", broker.port), limits.CONDITION_S) as client:
            # Two requests arrive at once.
            for data in (frames[0] + frames[1], frames[2]):
                client.sendall(data)
            while metrics(broker).value(f"{prefix}_request_total", **labels) < 3:
                received += len(client.recv(1_000_000))
            found = metrics(broker)
            sent = found.value(f"{prefix}_outgoing_byte_total", **labels)
            while received < sent:
                received += len(client.recv(1_000_000))
            assert read(found) == [1, 0, 3, 3, sum(map(len, frames)), received]
            assert found.value(f"{prefix}_connection_count", **labels) == 1
            software = {"clientSoftwareName": "unknown", "clientSoftwareVersion": "unknown"}
            assert found.value(f"{prefix}_connections_software", **software, **labels) == 1
        until(lambda: read(metrics(broker))[:2] == [1, 1])
        assert metrics(broker).value(f"{prefix}_failed_authentication_total", **labels) == 0
        requests = "kafka_network_requestmetrics"
        assert found.value(f"{requests}_requestbytes_count", request="ApiVersions") == 3
        size = found.value(f"{requests}_requestbytes", request="ApiVersions", quantile="0.50")
        assert abs(size - len(frames[0])) < len(frames[0]) * 0.1


def test_apis_that_were_not_used_have_the_count_0():
    with OdradekBroker({"metrics.listener": "127.0.0.1:0"}) as broker:
        found = metrics(broker)
    name = "kafka_network_requestmetrics_totaltimems_count"
    served = {dict(labels)["request"] for labels in found.values[name]}
    assert served >= {"Produce", "Fetch", "FetchConsumer", "FetchFollower", "DeleteTopics", "WriteTxnMarkers"}
    assert set(found.values[name].values()) == {0}
    for request in ("Produce", "Fetch", "FetchConsumer", "FetchFollower"):
        assert found.value("kafka_network_requestmetrics_totaltimems", request=request, quantile="0.95") == 0


def test_the_idle_time_of_the_reactor_by_all_names(measured):
    found = metrics(measured)
    idle = found.value("kafka_network_socketserver_networkprocessoravgidle_percent")
    assert 0 < idle <= 1
    assert found.value("kafka_network_socketserver_networkprocessoravgidlepercent") == idle
    assert found.value("kafka_network_processor_idlepercent", networkProcessor="0") == idle
    pool = "kafka_server_kafkarequesthandlerpool"
    assert found.value(f"{pool}_requesthandleravgidle_percent") == idle
    began_ns = time.monotonic_ns()
    before_ns = metrics(measured).value(f"{pool}_requesthandleravgidlepercent_count")
    idle_ns = 0.0

    def is_measured() -> bool:
        nonlocal idle_ns
        idle_ns = metrics(measured).value(f"{pool}_requesthandleravgidlepercent_count") - before_ns
        return idle_ns > 0.2e9

    until(is_measured)
    assert idle_ns < time.monotonic_ns() - began_ns


def test_refused_batches_by_reason(measured, unique):
    compacted = f"{unique}-compacted"
    prefix = "kafka_server_brokertopicmetrics"
    with Wire(measured.port) as wire:
        wire.create_topic(compacted, cleanup_policy="compact")
        wire.create_topic(unique)
        before = metrics(measured)
        assert wire.produce(compacted, b"1", b"2", key=None).error_code == ErrorCode.INVALID_RECORD
        # A record whose time is refused too counts for its missing key.
        late = build_batch([(2**62, b"k", b"x", ()), (1, None, b"x", ())])
        assert wire.produce(compacted, batch=late).error_code == ErrorCode.INVALID_TIMESTAMP
        batch = bytearray(build_batch([(1, None, b"x", ())]))
        batch[7] = 1  # the base offset, which the checksum does not contain
        assert wire.produce(unique, batch=bytes(batch)).error_code == ErrorCode.INVALID_RECORD
        batch[16] = 1
        assert wire.produce(unique, batch=bytes(batch)).error_code == ErrorCode.INVALID_RECORD
    found = metrics(measured)
    for name, count in (("nokeycompactedtopic", 3), ("invalidoffsetorsequence", 1), ("invalidmagicnumber", 1)):
        metric = f"{prefix}_{name}records_total"
        assert found.value(metric) - before.value(metric) == count
    assert found.value(f"{prefix}_failedproducerequests_total", topic=unique) == 2


def test_fetches_that_wait_in_vain(measured, unique):
    name = "kafka_server_delayedfetchmetrics_expires_total"
    with Wire(measured.port) as wire:
        wire.create_topic(unique)
        before = metrics(measured).value(name, fetcherType="consumer")
        request = wire.fetch_request(unique, 0, max_wait_ms=10, min_bytes=1)
        for _ in range(3):
            wire.ask(request, 11)
    assert metrics(measured).value(name, fetcherType="consumer") == before + 3
    assert metrics(measured).value(name, fetcherType="follower") == 0


def test_a_throttled_client(unique):
    with OdradekBroker({"metrics.listener": "127.0.0.1:0"}) as broker:
        alter_quota(broker, "producer_byte_rate", 10_000)
        with Wire(broker.port) as wire:
            wire.create_topic(unique)
            assert wire.produce(unique, b"x" * 120_000).error_code == 0
        # The client id of `Wire`. Kafka permits a burst of 10 windows of a second.
        labels = {"resource": "Produce", "clientId": "test"}
        throttle_ms = metrics(broker).value("kafka_server_quota_throttle_time", **labels)
        assert 500 < throttle_ms < 10_000


def test_compactions(unique):
    properties = {"metrics.listener": "127.0.0.1:0", "log.cleaner.backoff.ms": "100"}
    with OdradekBroker(properties) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic(unique, cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.01)
            for _ in range(30):
                assert wire.produce(unique, b"x" * 100_000).error_code == 0
        until(lambda: metrics(broker).value("kafka_log_logcleaner_max_clean_time_secs") > 0, 30)
        found = metrics(broker)
        assert 0 < found.value("kafka_log_logcleaner_cleaner_recopy_percent") < 50
        assert found.value("kafka_log_logcleaner_max_compaction_delay_secs") == 0
        assert set(found.values["kafka_log_logcleanermanager_uncleanable_bytes"].values()) == {0}


def test_transactions_without_an_end(measured, unique):
    name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    producer = Producer({"bootstrap.servers": measured.bootstrap_servers, "transactional.id": unique})
    producer.init_transactions()
    for timestamp_ms, late in ((int(time.time() * 1000), 0), (1000, 1)):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(unique, VALUE, partition=partition, timestamp=timestamp_ms)
        assert producer.flush(30) == 0
        assert metrics(measured).value(name) == 2 * late
        producer.abort_transaction()
    until(lambda: metrics(measured).value(name) == 0)


def test_events_of_the_controller(measured, unique):
    name = "kafka_controller_controllereventmanager_eventqueue"
    before = metrics(measured)
    with Wire(measured.port) as wire:
        wire.create_topic(unique)
    found = metrics(measured)
    for kind in ("timems", "processingtimems"):
        assert found.value(f"{name}{kind}_count") > before.value(f"{name}{kind}_count")
    assert found.value(f"{name}processingtimems", quantile="0.999") > 0
    assert found.value("kafka_controller_kafkacontroller_controlledshutdownbrokercount") == 0


def alter_quota(broker: OdradekBroker, key: str, value: float) -> None:
    """Set a quota of all client ids."""
    command = ["quota", "alter", "--client-id", "<default>", "--set", f"{key}={value:.0f}"]
    assert main([*command, "--bootstrap-server", broker.bootstrap_servers]) == 0


def test_health(measured):
    assert get_status(f"{measured.metrics_url}/healthz") == (200, "ok\n")
    assert get_status(f"{measured.metrics_url}/readyz") == (200, "ok\n")
    assert get_status(f"{measured.metrics_url}/other")[0] == 404


def test_a_broker_with_an_offline_partition_is_not_ready(tmp_path):
    properties = {"metrics.listener": "127.0.0.1:0", "log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    with OdradekBroker(properties) as broker:
        for n in range(4):
            produce(broker.bootstrap_servers, f"t{n}", 1)
        broker.stop()
        victim = tmp_path / "b"  # the other one has the metadata
        names = sorted(path.name for path in victim.glob("t*-0"))
        shutil.rmtree(victim)
        victim.write_text("not a directory")
        broker.start()
        status, text = get_status(f"{broker.metrics_url}/readyz")
        assert status == 503
        assert f"{len(names)} partitions are offline" in text
        found = scrape(f"{broker.metrics_url}/metrics")
        assert found.value("kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert found.value("kafka_controller_kafkacontroller_offlinepartitionscount") == len(names)


def test_the_port_of_the_metrics_is_in_use():
    port = processes.lasting_port()
    properties = {"metrics.listener": f"127.0.0.1:{port}"}
    with OdradekBroker(properties), pytest.raises(BrokerFailedError, match=f"127.0.0.1:{port} .*metrics.listener"):
        OdradekBroker(properties).start()


ABSENT = (
    ("(jmx|jvm)_.*", "the exporter and the JVM; some have a counterpart"),
    ("kafka_server_(raft|brokermetadata|metadataloader|snapshotemitter|controllerserver).*", "KRaft"),
    ("kafka_server_assignmentsmanager_.*", "KRaft"),
    ("kafka_controller_kafkacontroller_(last|eventqueueop|timedout|timesince|ignored|fenced|newactive).*", "KRaft"),
    ("kafka_controller_kafkacontroller_(metadataerror|brokerregistration).*", "KRaft"),
    ("kafka_controller_controllerstats_electionfromeligible.*", "KRaft"),
    (".*_controllerrequesthandleravgidle.*", "the pool of Kafka's controller"),
    ("kafka_server_(sharegroup|sharesession|brokertopicmetrics_(total|failed)share).*", "share groups"),
    ("kafka_log_logmanager_(cordoned|.*cordoned).*", "there are no cordoned log directories"),
    (".*_deadthreadcount", "no thread ends alone"),
    ("kafka_server_.*_minfetchrate", "there are no threads of fetchers"),
    ("kafka_server_replicaalterlogdirsmanager_.*", "there are no fetchers for moves"),
    ("kafka_controller_controllereventmanager_avgidleratio", "there is no thread of the controller"),
    ("kafka_server_socket_server_metrics_(io|network_io|select|request_size|reauthentication_latency)_.*", "a thread"),
    ("kafka_server_socket_server_metrics_successful_authentication_no_reauth_total", "clients before KIP-368"),
    ("kafka_network_(acceptor_acceptorblockedpercent_count|socketserver_memorypool.*)", "no such thread or pool"),
    ("kafka_network_requestchannel_responsequeuesize", "responses wait in connections"),
    ("kafka_network_requestmetrics_(messageconversionstimems|temporarymemorybytes).*", "not measured"),
    ("kafka_server_addpartitionstotxnmanager_.*", "not measured"),
    ("kafka_coordinator_transaction_transactionmarkerchannelmanager_.*", "markers wait in their transactions"),
    ("kafka_log_logcleaner_max_buffer_utilization_percent|kafka_utils_throttler_.*", "not measured"),
    ("kafka_log_log_retentionsizein_?percent", "a quotient of others"),
    (".*_yammer_metrics_count", "the number of Kafka's metrics"),
    ("kafka_server_quota_start_time_ms", "an MBean of the type app-info, which a rule for quotas matches"),
)
"""Metrics of Kafka that do not exist here, by pattern, with the reason; docs/metrics.md lists them."""

ELSEWHERE = re.compile(
    "kafka_server_(fetcherlagmetrics_consumerlag|quota_.*)",
)
"""Metrics of Kafka that the broker of this test does not have: with followers or quotas."""


@pytest.fixture(scope="module")
def exported(kafka_jars: Any) -> dict[str, Scrape]:
    """Metrics of Apache Kafka under load, by the published rules of the JMX exporter."""
    found = {}
    for rules in ("kafka-2_0_0", "strimzi"):
        port = processes.lasting_port()
        agent = f"-javaagent:{jars.jmx_exporter_jar()}=127.0.0.1:{port}:{RULES / rules}.yml"
        with ApacheKafkaBroker(SHARED_PROPERTIES, jvm_options=(*QUICK_JVM, agent)) as kafka:
            load(kafka.bootstrap_servers, rules)
            found[rules] = scrape(f"http://127.0.0.1:{port}/metrics")
    return found


def load(bootstrap_servers: str, topic: str) -> None:
    """Write, read, commit a transaction, and create a topic with fewer replicas than min.insync.replicas."""
    few = NewTopic(f"{topic}-few", 1, 1, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([few])[few.topic].result(limits.CONDITION_S)
    produce(bootstrap_servers, topic)
    consume(bootstrap_servers, topic)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, VALUE)
    producer.commit_transaction()


def plain_name(name: str) -> str:
    """Return a name without the suffix that this series of the exporter adds to the counters of histograms."""
    return name.replace("_count_total", "_count")


def test_names_types_and_labels_are_those_of_apache_kafka(measured, unique, exported):
    load(measured.bootstrap_servers, unique)
    ours = metrics(measured)
    names = [name for name in ours.values if name.startswith("kafka_")]
    assert len(names) > 100
    unknown = set(names)
    for theirs in exported.values():
        theirs_by_name = {plain_name(name): name for name in theirs.values}
        for name in theirs_by_name.keys() & names:
            their_name = theirs_by_name[name]
            assert ours.types[name] == theirs.types[their_name] or theirs.types[their_name] == "unknown", name
            assert ours.label_names(name) & theirs.label_names(their_name), name
        unknown -= theirs_by_name.keys()
    assert sorted(name for name in unknown if not ELSEWHERE.fullmatch(name)) == []


@pytest.mark.parametrize(("state", "value"), [("underminisr", 0), ("atminisr", 1)])
def test_a_partition_with_fewer_replicas_than_min_insync_replicas(measured, unique, exported, state, value):
    load(measured.bootstrap_servers, unique)
    name = f"kafka_cluster_partition_{state}"
    assert sum_partitions(metrics(measured), name, f"{unique}-few") == value
    theirs = exported["kafka-2_0_0"]
    assert sum_partitions(theirs, name, "kafka-2_0_0-few") == value


def test_the_metrics_of_apache_kafka_exist(measured, unique, exported):
    load(measured.bootstrap_servers, unique)
    ours = metrics(measured)
    theirs = {plain_name(name) for found in exported.values() for name in found.values}
    assert len(theirs) > 250
    missing = {name for name in theirs if not name.endswith("_created")} - ours.values.keys()
    assert sorted(name for name in missing if not any(re.fullmatch(pattern, name) for pattern, _ in ABSENT)) == []
    unused = [pattern for pattern, _ in ABSENT if not any(re.fullmatch(pattern, name) for name in missing)]
    assert unused == []
