"""Client metrics (KIP-714): requests and Kafka's tools against both brokers, and clients that push to Odradek."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests import limits, processes
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.apache_kafka.programs import compile_program
from compat_tests.backends import Broker
from compat_tests.clients.common import wait_until
from compat_tests.metrics.telemetry_requests import Asker, answer_changes, answer_pushes, list_advertised
from odradek.protocol.batches.compression import Codec, compress
from odradek.server.telemetry.tests.otlp_messages import encode, gauge, number
from odradek.testing import OdradekBroker

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("kafka_jars")]

RECEIVER = Path(__file__).parents[1] / "apache_kafka" / "TelemetryReceiver.java"
LOGGER = "server.telemetry.client_telemetry"
METRICS = compress(Codec.ZSTD, encode(gauge("org.apache.kafka.a", number(1))))


@pytest.fixture(scope="module")
def metrics_address() -> str:
    port = processes.lasting_port()
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def odradek(metrics_address: str) -> Iterator[OdradekBroker]:
    with OdradekBroker({"metrics.listener": metrics_address}) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafkaBroker]:
    """Apache Kafka with a receiver of metrics, without which it does not serve the APIs."""
    plugins = [compile_program(RECEIVER, "telemetry-receiver")]
    with ApacheKafkaBroker({"metric.reporters": "TelemetryReceiver"}, plugins=plugins) as broker:
        yield broker


def ask(broker: Broker) -> tuple[dict[str, Any], list[Any]]:
    asker = Asker(broker.port)
    try:
        return answer_changes(asker), answer_pushes(asker, METRICS, Codec.ZSTD)
    finally:
        asker.replace("p", {})
        asker.close()


def test_requests_are_answered_as_by_apache_kafka(odradek: OdradekBroker, kafka: ApacheKafkaBroker) -> None:
    (changes, pushes), (expected_changes, expected_pushes) = ask(odradek), ask(kafka)
    assert changes == expected_changes
    assert pushes == expected_pushes
    codes = {answer[1] for answer in pushes if isinstance(answer, tuple)}
    assert codes == {0, 42, 76, 87, 89, 117, 118}


def test_the_apis_are_advertised_while_there_is_a_subscription(odradek: OdradekBroker) -> None:
    assert list_advertised(odradek.port) == []
    asker = Asker(odradek.port)
    asker.replace("any", {"interval.ms": "60000"})
    assert list_advertised(odradek.port) == [(71, 0, 0), (72, 0, 0)]
    odradek.restart()
    assert list_advertised(odradek.port) == [(71, 0, 0), (72, 0, 0)]
    asker = Asker(odradek.port)
    asker.replace("any", {})
    asker.close()
    assert list_advertised(odradek.port) == []


def test_tools_print_the_same(odradek: OdradekBroker, kafka: ApacheKafkaBroker) -> None:
    def printed(broker: Broker) -> list[tuple[int, str]]:
        at = ("--bootstrap-server", broker.bootstrap_servers)
        asker = Asker(broker.port)
        found = []

        def run(tool: str, *arguments: str) -> None:
            result = tools.run(tool, *at, *arguments, check=False)
            # Apache Kafka's time of an error, and the parts of its stack trace, differ.
            found.append((result.returncode, "\n".join(sorted(result.lines))))

        def of_configs(*arguments: str) -> None:
            run(tools.CONFIGS, "--entity-type", "client-metrics", *arguments)

        run(tools.CLIENT_METRICS, "--list")
        run(tools.CLIENT_METRICS, "--alter", "--name", "one", "--metrics", "org.apache.kafka.producer.,b", "--interval",
            "2000", "--match", "client_id=a.*,client_software_name=x")  # fmt: skip
        asker.wait_for(["one"])
        of_configs("--alter", "--entity-name", "two", "--add-config", "metrics=[*],interval.ms=5000")
        asker.wait_for(["one", "two"])
        run(tools.CLIENT_METRICS, "--list")
        run(tools.CLIENT_METRICS, "--describe")
        run(tools.CLIENT_METRICS, "--describe", "--name", "one")
        of_configs("--describe")
        of_configs("--describe", "--entity-name", "two")
        of_configs("--alter", "--entity-name", "two", "--add-config", "interval.ms=1")
        of_configs("--alter", "--entity-name", "two", "--delete-config", "metrics,interval.ms")
        run(tools.CLIENT_METRICS, "--delete", "--name", "one")
        asker.wait_for([])
        run(tools.CLIENT_METRICS, "--list")
        of_configs("--describe", "--entity-name", "two")
        asker.close()
        return found

    assert printed(odradek) == printed(kafka)


def find_pushes(broker: OdradekBroker, client_id: str) -> list[tuple[str, int, bool]]:
    """Return software, number of data points, and whether it was the last, of the pushes of a client."""
    pattern = re.compile(
        rf"stored metrics of a client client_id={client_id} .* software=(\S+) points=(\d+) skipped=0 last=(\w+)"
    )
    return [(name, int(points), last == "True") for name, points, last in pattern.findall(broker.log_text())]


def has_pushed_twice(broker: OdradekBroker, client_id: str) -> bool:
    return len(find_pushes(broker, client_id)) > 1


@pytest.fixture
def all_metrics(odradek: OdradekBroker) -> Iterator[None]:
    """A subscription to all metrics of all clients, whose pushes are logged."""
    at = ("--bootstrap-server", odradek.bootstrap_servers)
    of_loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    # A logger exists when its module was imported, some time after the start.
    wait_until(
        lambda: LOGGER in tools.run(tools.CONFIGS, *at, *of_loggers, "--describe", "--all").stdout, limits.CONDITION_S
    )
    tools.run(tools.CONFIGS, *at, *of_loggers, "--alter", "--add-config", f"{LOGGER}=DEBUG")
    tools.run(tools.CLIENT_METRICS, *at, "--alter", "--name", "all", "--metrics", "*", "--interval", "200")
    yield
    tools.run(tools.CLIENT_METRICS, *at, "--delete", "--name", "all")


def find_names(address: str, client_id: str) -> set[str]:
    """Return the names of a client's series in /metrics."""
    with urlopen(f"http://{address}/metrics", timeout=limits.CONDITION_S) as response:
        text = response.read().decode()
    return set(re.findall(rf'^(\w+){{client_id="{client_id}",client_instance_id="[\w-]{{22}}",', text, re.MULTILINE))


@pytest.mark.usefixtures("all_metrics")
def test_librdkafka_pushes_its_metrics(odradek: OdradekBroker, metrics_address: str) -> None:
    config: dict[str, Any] = {"bootstrap.servers": odradek.bootstrap_servers, "log_level": 3}
    producer = Producer({**config, "client.id": "rdkafka-producer"})
    consumer = Consumer({**config, "client.id": "rdkafka-consumer", "group.id": "g"})
    producer.produce("pushed", b"value")
    producer.flush(limits.CONDITION_S)
    for client_id in ("rdkafka-producer", "rdkafka-consumer"):
        wait_until(partial(has_pushed_twice, odradek, client_id), limits.CONDITION_S)
    consumer.close()
    del producer
    wait_until(lambda: any(is_last for *_, is_last in find_pushes(odradek, "rdkafka-.*")), limits.CONDITION_S)
    assert {name for name, *_ in find_pushes(odradek, "rdkafka-.*")} == {"confluent-kafka-python"}
    for kind in ("producer", "consumer"):
        names = find_names(metrics_address, f"rdkafka-{kind}")
        assert {"kafka_client_info", f"org_apache_kafka_{kind}_connection_creation_total"} <= names


@pytest.mark.usefixtures("all_metrics")
def test_java_clients_push_their_metrics(odradek: OdradekBroker, metrics_address: str, tmp_path: Path) -> None:
    servers = odradek.bootstrap_servers
    load = ("--topic", "pushed", "--num-records", "1000000", "--throughput", "100", "--record-size", "10")
    options = ("--producer-props", f"bootstrap.servers={servers}", "client.id=java-producer")
    read = ("--bootstrap-server", servers, "--topic", "pushed", "--group", "j")
    with (
        tools.RunningTool(tmp_path / "producer", tools.PRODUCER_PERFORMANCE, *load, *options),
        tools.RunningTool(tmp_path / "consumer", tools.CONSOLE_CONSUMER, *read),
    ):
        for client_id in ("java-producer", "console-consumer"):
            wait_until(partial(has_pushed_twice, odradek, client_id), limits.TOOL_S)
            pushes = find_pushes(odradek, client_id)
            assert {name for name, *_ in pushes} == {"apache-kafka-java"}
            assert max(points for _, points, _ in pushes) > 50
            names = find_names(metrics_address, client_id)
            assert f"org_apache_kafka_{client_id[-8:]}_connection_creation_total" in names
            assert len(names) > 50
