"""Names of metrics: those that the example rules of the JMX exporter produce."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from odradek.server.metrics.catalog import METRICS, format_tables
from odradek.server.metrics.declaration import Family, Metric, gauge, histogram, idle_meter, labels, meter, percentage
from odradek.server.metrics.exposition import SAMPLES_PER_STEP, write_families

DOCS = Path(__file__).parents[3] / "docs"
if not DOCS.exists():
    DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (meter("kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec", ""),
         "kafka_server_brokertopicmetrics_bytesin_total"),
        (gauge("kafka.server:type=ReplicaManager,name=LeaderCount", ""), "kafka_server_replicamanager_leadercount"),
        (gauge("kafka.coordinator.group:type=GroupMetadataManager,name=NumGroups", ""),
         "kafka_coordinator_group_groupmetadatamanager_numgroups"),
        (percentage("kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent", "").percent,
         "kafka_network_socketserver_networkprocessoravgidle_percent"),
        (percentage("kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent", "").value,
         "kafka_network_socketserver_networkprocessoravgidlepercent"),
        (idle_meter("kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent", "", "").percent,
         "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"),
        (idle_meter("kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent", "", "").idle_ns,
         "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count"),
        (histogram("kafka.network:type=RequestMetrics,name=TotalTimeMs", "").quantiles,
         "kafka_network_requestmetrics_totaltimems"),
        (histogram("kafka.network:type=RequestMetrics,name=TotalTimeMs", "").observations,
         "kafka_network_requestmetrics_totaltimems_count"),
    ],
)  # fmt: skip
def test_names_follow_the_rules_of_the_jmx_exporter(metric, name):
    assert metric.name == name


def test_an_mbean_of_another_form_is_refused():
    with pytest.raises(ValueError, match="not an MBean"):
        gauge("java.lang:type=Memory", "")


def test_no_metric_is_declared_twice():
    names = [metric.name for metric in METRICS]
    assert sorted(names) == sorted(set(names))
    assert all(metric.help.endswith(".") for metric in METRICS)
    assert all(re.fullmatch(r"(kafka|odradek|jvm|process)_[a-z0-9_]+", name) for name in names)


def test_the_page_agrees_with_the_declarations():
    assert (DOCS / "metrics.md").read_text().endswith(format_tables())


def expose(*families):
    written: list[bytes] = []
    steps = sum(1 for _ in write_families(families, written.append))
    return b"".join(written).decode(), steps


def test_the_text_is_read_by_prometheus_own_parser():
    metric = Metric("odradek_a", "gauge", "Help.")
    text, _ = expose(Family(metric, [(labels(topic='a"b\\c\nd', from_=1), 2.5), ("", 3)]), None)
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type, family.documentation) == ("odradek_a", "gauge", "Help.")
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"topic": 'a"b\\c\nd', "from": "1"}, 2.5),
        ({}, 3.0),
    ]


def test_a_family_without_samples_has_no_lines():
    assert expose(Family(Metric("odradek_a", "gauge", "Help."), []))[0] == ""


def test_many_samples_are_written_in_steps():
    metric = Metric("odradek_a", "gauge", "Help.")
    text, steps = expose(Family(metric, ((labels(n=n), n) for n in range(10 * SAMPLES_PER_STEP))))
    assert steps >= 10
    assert text.count("# TYPE") == 1
    assert len(next(iter(text_string_to_metric_families(text))).samples) == 10 * SAMPLES_PER_STEP
