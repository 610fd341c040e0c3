"""Dashboards and alerts: their queries on a Prometheus that scrapes a cluster with clients."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests.clients.common import wait_until
from compat_tests.metrics.prometheus_server import MONITORING, PrometheusServer, needs_prometheus
from compat_tests.metrics_samples import scrape
from odradek.server.tests.wire import Wire, until
from odradek.testing_cluster import OdradekCluster
from odradek.tools.cli.main import main

pytestmark = [pytest.mark.timeout(180), needs_prometheus]

QUERIES = Path(__file__).parent / "dashboards"
TOPIC = "orders"
RECORDS = 500
VARIABLES = {
    "kubernetes_namespace": "kafka",
    "strimzi_cluster_name": "odradek",
    "kafka_broker": "(kafka-1|kafka-2)",
    "kafka_topic": f"(__consumer_offsets|{TOPIC})",
    "kafka_partition": "(0|1)",
    "__rate_interval": "1m",
    "instance": ".*",
}
"""The variables of the dashboards, as Grafana replaces one with several values and one with the value for all."""

JOBS = {"kafka": "", "confluent": "confluent_names.yml", "metrics_reporter": "metrics_reporter_names.yml"}
"""The relabeling of each Prometheus server."""


@pytest.fixture(scope="module")
def servers(kafka_jars: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, PrometheusServer]]:
    """Prometheus servers that have scraped two brokers with clients."""
    properties = {
        "metrics.listener": "127.0.0.1:0",
        "min.insync.replicas": "1",
        "num.partitions": "2",
        # With the session below: a broker that is only slow raises no alert.
        "replica.lag.time.max.ms": "60000",
    }
    with OdradekCluster(properties, size=2, session_timeout_ms=10_000) as cluster, ExitStack() as stack:
        urls = {broker_id: broker.metrics_url for broker_id, broker in cluster.brokers.items()}
        targets = {url.removeprefix("http://"): target_labels(broker_id) for broker_id, url in urls.items()}
        directory = tmp_path_factory.mktemp("prometheus")
        found = {
            job: stack.enter_context(PrometheusServer(directory / job, job, targets, relabeling))
            for job, relabeling in JOBS.items()
        }
        use(cluster.bootstrap_servers)
        throttle(cluster)
        until(lambda: all(count_out_of_sync(url) == 0 for url in urls.values()), 60)
        for server in found.values():
            server.await_scrapes()
        yield found


def target_labels(broker_id: int) -> dict[str, str]:
    """Return the labels that Strimzi's scrape configuration gives to a broker; docs/metrics.md has them."""
    name = f"odradek-kafka-{broker_id}"
    return {
        "namespace": "kafka",
        "strimzi_io_cluster": "odradek",
        "strimzi_io_name": "odradek-kafka",
        "kubernetes_pod_name": name,
        "container": "kafka",
    }


def count_out_of_sync(url: str) -> float:
    return scrape(f"{url}/metrics").value("kafka_server_replicamanager_underreplicatedpartitions")


def use(bootstrap_servers: str) -> None:
    """Write, also in a transaction and a batch that is refused, read, and commit."""
    client = {"bootstrap.servers": bootstrap_servers}
    producer = Producer({**client, "transactional.id": TOPIC})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(TOPIC, b"x" * 100, str(number))
    producer.commit_transaction()
    refused = Producer({**client, "message.max.bytes": 4_000_000})
    refused.produce(TOPIC, b"x" * 2_000_000, partition=0)
    refused.flush(30)
    consumer = Consumer({**client, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    read = 0

    def has_read() -> bool:
        nonlocal read
        read += len(consumer.consume(RECORDS, 0.2))
        return read >= RECORDS

    until(has_read, 60)
    consumer.commit(asynchronous=False)
    consumer.close()


def throttle(cluster: OdradekCluster) -> None:
    """Exceed quotas of each kind, at the leader of a partition."""
    # The client id of `Wire`.
    command = ["quota", "alter", "--client-id", "test"]
    for quota in ("producer_byte_rate=1000", "consumer_byte_rate=1000", "request_percentage=0.01"):
        command += ["--set", quota]
    assert main([*command, "--bootstrap-server", cluster.bootstrap_servers]) == 0
    with Wire(cluster.brokers[1].port) as wire:
        partition = wire.metadata(TOPIC).topics[0].partitions[0]
    leader, index = cluster.brokers[partition.leader_id], partition.partition_index
    requests: dict[str, Callable[[Wire], Any]] = {
        "Produce": lambda wire: wire.produce(TOPIC, b"x" * 20_000, partition=index),
        "Fetch": lambda wire: wire.ask(wire.fetch_request(TOPIC, 0, index), 11),
        "Request": lambda wire: wire.metadata(),
    }

    def is_throttled(resource: str) -> bool:
        # A new one, because the broker does not read a connection that is throttled.
        with Wire(leader.port) as wire:
            requests[resource](wire)
        times = scrape(f"{leader.metrics_url}/metrics").values.get("kafka_server_quota_throttle_time", {})
        return times.get((("clientId", "test"), ("resource", resource)), 0.0) > 0

    for resource in requests:
        until(partial(is_throttled, resource))


def read_queries(name: str) -> list[str]:
    """Return the queries in a file of published ones."""
    lines = (QUERIES / f"{name}.promql").read_text().splitlines()
    return [Template(line).substitute(VARIABLES) for line in lines if not line.startswith("#")]


def find_empty(server: PrometheusServer, queries: list[str]) -> list[str]:
    """Return the queries without a result."""
    assert len(queries) >= 15
    return [query for query in queries if not server.query(query)]


def test_all_queries_of_strimzis_dashboard_have_data(servers):
    assert find_empty(servers["kafka"], read_queries("strimzi")) == []


def test_the_metrics_of_grafanas_dashboards_have_data(servers):
    assert find_empty(servers["kafka"], read_queries("grafana")) == []


def test_the_metrics_of_confluents_dashboards_have_data_by_confluents_names(servers):
    assert find_empty(servers["confluent"], read_queries("confluent")) == []


def test_the_dashboard_for_strimzis_metrics_reporter_has_data_by_its_names(servers):
    """Its queries are those of the other dashboard with the names of the reporter, which has no rates of idle time."""
    idle = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle"
    queries = []
    for query in read_queries("strimzi"):
        query = re.sub(r"(?<=[a-z])_total\{", "persec_total{", query)
        query = query.replace("networkprocessoravgidle_percent", "networkprocessoravgidlepercent")
        queries.append(re.sub(rf"{idle}_percent(\{{.*?\}})", rf"irate({idle}percent_total\1[1m])", query))
    assert sum("persec_total" in query for query in queries) == 8
    assert find_empty(servers["metrics_reporter"], queries) == []


def test_published_alerts_have_data(servers):
    assert find_empty(servers["kafka"], read_queries("alerts")) == []


def test_all_queries_of_odradeks_dashboard_have_data(servers):
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert find_empty(servers["kafka"], [Template(query).substitute(VARIABLES) for query in queries]) == []


def test_no_alert_is_pending_or_firing_in_a_sound_cluster(servers):
    server = servers["kafka"]
    # A scrape may take longer than a second on a busy machine; it then counts as an error, and raises an alert.
    wait_until(lambda: list_errors(server) == {""}, what=lambda: f"scrapes without errors: {list_errors(server)}")
    rules = until(lambda: list_evaluated_rules(server))
    assert len(rules) >= 10
    assert {rule["health"] for rule in rules} == {"ok"}
    wait_until(lambda: list_alerts(server) == [], what=lambda: f"the end of the alerts {list_alerts(server)}")


def list_errors(server: PrometheusServer) -> set[str]:
    """Return the errors of the last scrapes."""
    return {target["lastError"] for target in server.ask("targets")["activeTargets"]}


def list_alerts(server: PrometheusServer) -> list[str]:
    """Return the rules with alerts that are pending or firing."""
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    return [rule["name"] for rule in rules if rule["alerts"]]


def list_evaluated_rules(server: PrometheusServer) -> list[dict[str, Any]]:
    """Return the alert rules; none before all have been evaluated."""
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    return [] if any(rule["health"] == "unknown" for rule in rules) else rules
