"""Alert rules, evaluated by promtool on made-up series that have the names and labels of a broker's."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.metrics.prometheus_server import ALERTS, needs_prometheus
from compat_tests.metrics_samples import Scrape, scrape
from odradek.server.tests.wire import until
from odradek.testing import OdradekBroker

pytestmark = [pytest.mark.timeout(180), needs_prometheus]

ONSET_MIN = 60
"""Minutes before the fault. Series have a sample a minute."""
END_MIN = 240

READER = 'client_id="regular", topic="orders", partition="0"'
BROKER, OTHER = 'instance="a:9404", job="kafka"', 'instance="b:9404", job="kafka"'
SOUND: Mapping[str, str] = {
    f"up{{{BROKER}}}": "1",
    f"up{{{OTHER}}}": "1",
    f"kafka_controller_kafkacontroller_activecontrollercount{{{BROKER}}}": "1",
    f"kafka_controller_kafkacontroller_activecontrollercount{{{OTHER}}}": "0",
    # A second job that scrapes the brokers, for dashboards with other names.
    'kafka_controller_kafkacontroller_activecontrollercount{instance="a:9404", job="kafka-broker"}': "1",
    'kafka_controller_kafkacontroller_activecontrollercount{instance="b:9404", job="kafka-broker"}': "0",
    f"kafka_controller_kafkacontroller_offlinepartitionscount{{{BROKER}}}": "0",
    f"kafka_controller_kafkacontroller_offlinepartitionscount{{{OTHER}}}": "0",
    f"kafka_server_replicamanager_underminisrpartitioncount{{{BROKER}}}": "0",
    f"kafka_server_replicamanager_underreplicatedpartitions{{{BROKER}}}": "0",
    # An election of an earlier time.
    f"kafka_controller_controllerstats_uncleanleaderelections_total{{{BROKER}}}": "3",
    f"kafka_log_logmanager_offlinelogdirectorycount{{{BROKER}}}": "0",
    f"kafka_network_socketserver_networkprocessoravgidle_percent{{{BROKER}}}": "0.9",
    f'kafka_log_logcleanermanager_uncleanable_partitions_count{{{BROKER}, logDirectory="/data"}}': "0",
    f"odradek_reader_lag{{{BROKER}, {READER}}}": "5",
    f"odradek_reader_last_fetch_timestamp_seconds{{{BROKER}, {READER}}}": "0+60",
}
"""The values of all series of the rules while nothing is wrong: constant, or a start and an increment by minute."""


class Fault(NamedTuple):
    """A fault that raises an alert.

    series: the series that changes at ONSET_MIN, or the name of its metric, of which the first one changes
    values: its values from then on
    delay_min: minutes after which the alert fires
    value: `$value` in the annotations
    labels: the labels of the alert
    """

    alert: str
    series: str
    values: str
    delay_min: int
    value: str
    labels: Mapping[str, str]


CRITICAL, WARNING = {"severity": "critical"}, {"severity": "warning"}
OF_JOB = {"job": "kafka"}
OF_TARGET = {**OF_JOB, "instance": "a:9404"}
CONTROLLER = "kafka_controller_kafkacontroller_activecontrollercount"
FAULTS = (
    Fault("KafkaBrokerDown", "up", "0", 1, "0", {**CRITICAL, **OF_TARGET}),
    Fault("KafkaNoActiveController", f"{CONTROLLER}{{{BROKER}}}", "0", 1, "0", {**CRITICAL, **OF_JOB}),
    Fault("KafkaNoActiveController", f"{CONTROLLER}{{{OTHER}}}", "1", 1, "2", {**CRITICAL, **OF_JOB}),
    Fault(
        "KafkaOfflinePartitions",
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "2",
        1,
        "2",
        {**CRITICAL, **OF_JOB},
    ),
    Fault(
        "KafkaUnderMinIsr",
        "kafka_server_replicamanager_underminisrpartitioncount",
        "2",
        1,
        "2",
        {**CRITICAL, **OF_TARGET},
    ),
    Fault(
        "KafkaUnderReplicated",
        "kafka_server_replicamanager_underreplicatedpartitions",
        "2",
        5,
        "2",
        {**WARNING, **OF_TARGET},
    ),
    Fault(
        "KafkaUncleanElection",
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "4",
        0,
        "",
        {**CRITICAL, **OF_TARGET},
    ),
    Fault(
        "KafkaLogDirectoryOffline",
        "kafka_log_logmanager_offlinelogdirectorycount",
        "1",
        0,
        "1",
        {**CRITICAL, **OF_TARGET},
    ),
    Fault(
        "KafkaThreadsBusy",
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "0.1",
        10,
        "0.1",
        {**WARNING, **OF_TARGET},
    ),
    Fault(
        "KafkaCompactionFails",
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "1",
        10,
        "1",
        {**WARNING, **OF_TARGET},
    ),
    # The last fetch was a minute before.
    Fault(
        "KafkaReaderStopped",
        "odradek_reader_last_fetch_timestamp_seconds",
        "3540",
        60,
        "5",
        {**WARNING, **OF_TARGET, "client_id": "regular", "topic": "orders", "partition": "0"},
    ),
)


def list_rules() -> dict[str, str]:
    """Return the text of each rule."""
    _, *rules = re.split(r"(?m)^ +- alert: ", ALERTS.read_text())
    return {name: text for name, _, text in (rule.partition("\n") for rule in rules)}


def extend(values: str, length: int) -> str:
    """Return promtool's notation of a series that begins with a value, and has an increment or none."""
    return f"{values}x{length - 1}" if "+" in values else f"{values}+0x{length - 1}"


def change(fault: Fault) -> dict[str, str]:
    """Return the values of all series with a fault."""
    changed = next(name for name in SOUND if fault.series in (name, name.partition("{")[0]))
    before = extend(SOUND[changed], ONSET_MIN)
    found = {name: extend(values, END_MIN) for name, values in SOUND.items()}
    return {**found, changed: f"{before} {extend(fault.values, END_MIN - ONSET_MIN)}"}


def expect(fault: Fault) -> dict[str, Any]:
    """Return the alert of a fault as promtool compares it."""
    rule = list_rules()[fault.alert]
    annotations = {}
    for name, text in re.findall(r'(?m)^ +(summary|action): "(.*)"$', rule):
        text = text.replace("{{ $value }}", fault.value)
        annotations[name] = re.sub(r"\{\{ \$labels\.(\w+) }}", lambda match: fault.labels[match[1]], text)
    return {"exp_labels": dict(fault.labels), "exp_annotations": annotations}


def evaluate(directory: Path, series: Mapping[str, str], expected: Mapping[int, Mapping[str, Any]]) -> None:
    """Compare the alerts at some minutes, by name, with those of promtool; all others must not fire."""
    rows = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [alerts[name]] if name in alerts else []}
        for minute, alerts in expected.items()
        for name in list_rules()
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": rows,
    }
    file = directory / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.alert}-{fault.value}")
def test_a_fault_raises_its_alert_and_no_other(fault, tmp_path):
    fires_at = ONSET_MIN + fault.delay_min
    evaluate(tmp_path, change(fault), {fires_at - 1: {}, fires_at: {fault.alert: expect(fault)}})


def test_each_alert_has_a_fault():
    rules = list_rules()
    assert len(rules) >= 10
    assert {fault.alert for fault in FAULTS} == rules.keys()


def test_no_alert_without_a_fault(tmp_path):
    series = {name: extend(values, END_MIN) for name, values in SOUND.items()}
    evaluate(tmp_path, series, {minute: {} for minute in range(0, END_MIN, 10)})


def test_an_unclean_election_raises_an_alert_for_ten_minutes(tmp_path):
    (fault,) = [fault for fault in FAULTS if fault.alert == "KafkaUncleanElection"]
    evaluate(tmp_path, change(fault), {ONSET_MIN + 8: {fault.alert: expect(fault)}, ONSET_MIN + 11: {}})


def test_readers_that_read_once_or_have_read_all_raise_no_alert(tmp_path):
    labels = 'client_id="{}", topic="orders", partition="0"'
    once, idle = labels.format("once"), labels.format("idle")
    series = {
        f"odradek_reader_lag{{{once}}}": "5+0x239",
        f"odradek_reader_last_fetch_timestamp_seconds{{{once}}}": "60+0x239",
        f"odradek_reader_lag{{{idle}}}": "0+0x239",
        f"odradek_reader_last_fetch_timestamp_seconds{{{idle}}}": "0+60x59 3540+0x179",
    }
    sound = {name: extend(values, END_MIN) for name, values in SOUND.items()}
    evaluate(tmp_path, {**sound, **series}, {minute: {} for minute in (150, 200, 239)})


def test_a_broker_has_the_metrics_and_labels_of_the_alerts(unique):
    """Prometheus adds the labels `instance` and `job`, and the metric `up`."""
    series: dict[str, set[str]] = {}
    for text in SOUND:
        name, _, labels = text.partition("{")
        series[name] = set(re.findall(r"(\w+)=", labels)) - {"instance", "job"}
    del series["up"]
    for rule in list_rules().values():
        expression = rule.partition("labels:")[0]
        assert set(re.findall(r"\b(?:kafka|odradek)_\w+", expression)) <= series.keys()
    with OdradekBroker({"metrics.listener": "127.0.0.1:0"}) as broker:
        read_once(broker, unique)

        def has_reader() -> Scrape | None:
            found = scrape(f"{broker.metrics_url}/metrics")
            return found if "odradek_reader_lag" in found.values else None

        found = until(has_reader)
    assert {name: found.label_names(name) for name in series} == {
        name: {frozenset(keys)} for name, keys in series.items()
    }


def read_once(broker: OdradekBroker, topic: str) -> None:
    """Write a record, and read it without a group."""
    client = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "regular"}
    producer = Producer(client)
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    reader = Consumer({**client, "group.id": "unused", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, 0, 0)])
    until(lambda: reader.consume(1, 1))
    reader.close()
