"""Apache Kafka's own command line tools against the broker."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from compat_tests import transaction_frames as frames
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.tools import RunningTool, ToolResult, run
from compat_tests.clients import load
from compat_tests.clients.common import ClientError, ConsumerOptions, Message, ProducerOptions, read, wait_until

pytestmark = pytest.mark.usefixtures("kafka_jars")

CLIENT = load("confluent")


@pytest.fixture
def tool(broker: Any) -> Any:
    """Run a tool with --bootstrap-server filled in."""

    def run_tool(name: str, *arguments: str, **options: Any) -> ToolResult:
        return run(name, "--bootstrap-server", broker.bootstrap_servers, *arguments, **options)

    return run_tool


@pytest.fixture
def make_admin() -> Any:
    """Make an admin client for a broker of the test's own."""
    return lambda broker: load("kafka_python").Admin(broker.bootstrap_servers)


def table(result: ToolResult) -> list[dict[str, str]]:
    """Return the rows of a tool's table by its headings."""
    heading, *rows = [line.split() for line in result.lines if not line.startswith("Consumer group")]
    return [dict(zip(heading, row, strict=False)) for row in rows]


def produce(broker: Any, topic: str, count: int, partition: int = 0) -> None:
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(topic, [Message(b"%d" % n, partition=partition) for n in range(count)])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_the_console_producer_are_read_by_librdkafka(broker, tool, topic, codec):
    lines = "".join(f"h1:v1,h2:v2|key{n}|value {n}\n" for n in range(500))
    properties = ["parse.key=true", "parse.headers=true", "headers.delimiter=|", "key.separator=|"]
    arguments = [argument for each in properties for argument in ("--reader-property", each)]
    tool(tools.CONSOLE_PRODUCER, "--topic", topic, "--compression-codec", codec, *arguments, stdin=lines)
    with CLIENT.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
        consumer.assign([(topic, 0)])
        records = read(consumer, 500)
    assert [(r.key, r.value) for r in records] == [(b"key%d" % n, b"value %d" % n) for n in range(500)]
    assert {r.headers for r in records} == {(("h1", b"v1"), ("h2", b"v2"))}


def test_records_of_librdkafka_are_read_by_the_console_consumer(broker, tool, unique, admin):
    admin.create_topic(unique, 2)
    now = int(time.time() * 1000)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(compression="zstd")) as producer:
        producer.produce(
            unique,
            [
                Message(b"first", b"k1", (("a", b"1"), ("a", None)), 0, now),
                Message(None, b"k2", (), 0, now + 1),
                Message(b"third", None, (), 1, now + 2),
            ],
        )
    shown = [
        "print.key=true",
        "print.headers=true",
        "print.partition=true",
        "print.offset=true",
        "print.timestamp=true",
    ]
    arguments = [argument for each in [*shown, "key.separator=;"] for argument in ("--formatter-property", each)]
    result = tool(tools.CONSOLE_CONSUMER, "--topic", unique, "--from-beginning", "--max-messages", "3", *arguments)
    assert sorted(result.lines) == [
        f"CreateTime:{now};Partition:0;Offset:0;a:1,a:null;k1;first",
        f"CreateTime:{now + 1};Partition:0;Offset:1;NO_HEADERS;k2;null",
        f"CreateTime:{now + 2};Partition:1;Offset:0;NO_HEADERS;null;third",
    ]


def test_console_consumer_in_a_group_continues_where_it_stopped(broker, tool, topic, unique):
    produce(broker, topic, 10)
    # The consumer commits when it closes; records polled but not printed are committed by a later run only.
    arguments = ["--topic", topic, "--group", unique, "--command-property", "max.poll.records=1"]
    first = tool(tools.CONSOLE_CONSUMER, *arguments, "--max-messages", "4", "--from-beginning")
    second = tool(tools.CONSOLE_CONSUMER, *arguments, "--max-messages", "6", "--from-beginning")
    assert [int(line) for line in first.lines + second.lines] == list(range(10))


def test_topics(tool, unique):
    tool(tools.TOPICS, "--create", "--topic", unique, "--partitions", "3", "--config", "retention.ms=123456")
    described = tool(tools.TOPICS, "--describe", "--topic", unique).lines
    assert re.match(rf"Topic: {unique}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 1\s", described[0])
    assert "retention.ms=123456" in described[0]
    assert [
        re.findall(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)", d)[0][0] for d in described[1:]
    ] == [
        "0",
        "1",
        "2",
    ]
    tool(tools.TOPICS, "--alter", "--topic", unique, "--partitions", "5")
    again = tool(tools.TOPICS, "--create", "--topic", unique, check=False)
    assert again.returncode == 1
    assert "TopicExistsException" in again.stdout + again.stderr
    assert unique in tool(tools.TOPICS, "--list").lines
    tool(tools.TOPICS, "--delete", "--topic", unique)
    gone = tool(tools.TOPICS, "--describe", "--topic", unique, check=False)
    assert gone.returncode == 1
    assert "does not exist" in gone.stdout + gone.stderr


def test_configs(broker, tool, topic):
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    tool(
        tools.CONFIGS,
        "--alter",
        *of_topic,
        "--add-config",
        "cleanup.policy=[compact,delete],retention.ms=777777",
    )
    described = tool(tools.CONFIGS, "--describe", *of_topic).stdout
    assert re.search(r"cleanup\.policy=compact,delete sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:", described)
    assert "retention.ms=777777" in described
    tool(tools.CONFIGS, "--alter", *of_topic, "--delete-config", "retention.ms")
    everything = tool(tools.CONFIGS, "--describe", "--all", *of_topic).stdout
    assert "retention.ms=604800000 sensitive=false synonyms={}" in everything
    bad = tool(tools.CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=soon", check=False)
    assert bad.returncode == 1
    assert "InvalidConfigurationException" in bad.stdout + bad.stderr


def test_broker_configs(tool):
    brokers = ["--entity-type", "brokers", "--entity-default"]
    tool(tools.CONFIGS, "--alter", *brokers, "--add-config", "log.cleaner.backoff.ms=14999")
    assert "log.cleaner.backoff.ms=14999" in tool(tools.CONFIGS, "--describe", *brokers).stdout
    tool(tools.CONFIGS, "--alter", *brokers, "--delete-config", "log.cleaner.backoff.ms")


def test_consumer_groups(broker, tool, unique, admin):
    admin.create_topic(unique, 2)
    produce(broker, unique, 10)
    options = ConsumerOptions(group=unique, client_id="shown")
    with CLIENT.Consumer(broker.bootstrap_servers, options) as consumer:
        consumer.subscribe([unique], None)
        read(consumer, 10)
        consumer.commit({(unique, 0): (6, ""), (unique, 1): (0, "")})
        listed = table(tool(tools.CONSUMER_GROUPS, "--list", "--state"))
        assert [row["STATE"] for row in listed if row["GROUP"] == unique] == ["Stable"]
        rows = table(tool(tools.CONSUMER_GROUPS, "--describe", "--group", unique))
        reported = [(r["PARTITION"], r["CURRENT-OFFSET"], r["LOG-END-OFFSET"], r["LAG"], r["CLIENT-ID"]) for r in rows]
        assert sorted(reported) == [("0", "6", "10", "4", "shown"), ("1", "0", "0", "0", "shown")]
        (member,) = table(tool(tools.CONSUMER_GROUPS, "--describe", "--members", "--group", unique))
        assert (member["CLIENT-ID"], member["#PARTITIONS"]) == ("shown", "2")
        busy = tool(tools.CONSUMER_GROUPS, "--delete", "--group", unique, check=False)
        assert "GroupNotEmptyException" in busy.stdout + busy.stderr
    reset = ["--reset-offsets", "--group", unique, "--topic", unique, "--execute"]
    rows = table(tool(tools.CONSUMER_GROUPS, *reset, "--shift-by", "-2"))
    assert {(r["PARTITION"], r["NEW-OFFSET"]) for r in rows} == {("0", "4"), ("1", "0")}
    tool(tools.CONSUMER_GROUPS, "--delete-offsets", "--group", unique, "--topic", f"{unique}:1")
    assert admin.group_offsets(unique) == {(unique, 0): 4}
    tool(tools.CONSUMER_GROUPS, "--delete", "--group", unique)
    assert unique not in admin.groups()


def test_reset_offsets_by_time_and_to_the_ends(broker, tool, topic, unique, admin):
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        start = int(time.time()) - 100
        stamps = [(start + n) * 1000 for n in range(10)]
        producer.produce(topic, [Message(b"x", timestamp_ms=t) for t in stamps])
    reset = ["--reset-offsets", "--group", unique, "--topic", topic, "--execute"]
    between = time.strftime("%Y-%m-%dT%H:%M:%S.500Z", time.gmtime(start + 4))
    tool(tools.CONSUMER_GROUPS, *reset, "--to-datetime", between)
    assert admin.group_offsets(unique) == {(topic, 0): 5}
    tool(tools.CONSUMER_GROUPS, *reset, "--to-latest")
    assert admin.group_offsets(unique) == {(topic, 0): 10}


def test_get_offsets_and_delete_records(broker, tool, unique, admin, tmp_path):
    admin.create_topic(unique, 2)
    produce(broker, unique, 7)
    produce(broker, unique, 3, partition=1)
    file = tmp_path / "below.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": unique, "partition": 0, "offset": 4}]}))
    deleted = tool(tools.DELETE_RECORDS, "--offset-json-file", str(file))
    assert re.search(rf"partition: {unique}-0\s+low_watermark: 4", deleted.stdout)
    latest = tool(tools.GET_OFFSETS, "--topic", unique, "--time", "-1").lines
    earliest = tool(tools.GET_OFFSETS, "--topic", unique, "--time", "-2").lines
    largest = tool(tools.GET_OFFSETS, "--topic-partitions", f"{unique}:1", "--time", "max-timestamp").lines
    assert latest == [f"{unique}:0:7", f"{unique}:1:3"]
    assert earliest == [f"{unique}:0:4", f"{unique}:1:0"]
    assert len(largest) == 1


def test_log_dirs(broker, tool, topic):
    produce(broker, topic, 10)
    result = tool(tools.LOG_DIRS, "--describe", "--topic-list", topic)
    (reported,) = [json.loads(line) for line in result.lines if line.startswith("{")]
    (directory,) = reported["brokers"][0]["logDirs"]
    assert (directory["error"], directory["logDir"]) == (None, str(broker.data_dir))
    (partition,) = directory["partitions"]
    assert (partition["partition"], partition["offsetLag"], partition["isFuture"]) == (f"{topic}-0", 0, False)
    assert partition["size"] == sum(p.stat().st_size for p in (broker.data_dir / f"{topic}-0").glob("*.log"))


def test_performance_tools(tool, unique, admin):
    admin.create_topic(unique, 2)
    load = ["--topic", unique, "--num-records", "20000", "--record-size", "200", "--throughput", "-1"]
    produced = tool(tools.PRODUCER_PERFORMANCE, *load, "--command-property", "acks=all", "compression.type=lz4")
    assert "20000 records sent" in produced.stdout
    consumed = tool(tools.CONSUMER_PERFORMANCE, "--topic", unique, "--num-records", "20000", "--timeout", "20000")
    heading, row = (line.split(", ") for line in consumed.lines[:2])
    reported = dict(zip(heading, row, strict=True))
    # It stops polling at the first batch that reaches the count, and counts the whole batch.
    (count,) = [int(value) for name, value in reported.items() if name.startswith("data.consumed.in.n")]
    assert count == 20000


def test_verifiable_producer_and_consumer(broker, unique, admin, tmp_path):
    """Every acknowledged record is consumed once and in order; the consumer commits and leaves its group."""
    admin.create_topic(unique, 1)
    to_broker = ["--bootstrap-server", broker.bootstrap_servers, "--topic", unique]
    consumer_arguments = [*to_broker, "--group-id", unique, "--max-messages", "5000", "--verbose"]
    output = tmp_path / "consumer"
    with RunningTool(output, tools.VERIFIABLE_CONSUMER, *consumer_arguments) as consumer:
        produced = run(tools.VERIFIABLE_PRODUCER, *to_broker, "--max-messages", "5000", "--throughput", "20000")
        consumer.wait_for("shutdown_complete")
    acknowledged = [e for e in events(produced.stdout) if e["name"] == "producer_send_success"]
    assert [int(e["value"]) for e in acknowledged] == list(range(5000))
    reported = events(output.read_text())
    consumed = [e for e in reported if e["name"] == "record_data"]
    assert [(e["offset"], int(e["value"])) for e in consumed] == [(n, n) for n in range(5000)]
    names = {e["name"] for e in reported}
    assert {"startup_complete", "partitions_assigned", "records_consumed", "offsets_committed"} <= names
    assert all(e["success"] for e in reported if e["name"] == "offsets_committed")
    assert admin.group_offsets(unique) == {(unique, 0): 5000}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_broker_api_versions(broker, tool):
    listed = tool(tools.BROKER_API_VERSIONS).stdout
    versions = dict(re.findall(r"\s(\w+)\(\d+\): (\d+(?: to \d+)?|UNSUPPORTED)", listed))
    expected = {"Produce": "0 to 13", "Fetch": "4 to 18", "ListOffsets": "1 to 11", "Metadata": "0 to 13"}
    assert {name: versions[name] for name in expected} == expected
    assert versions["ApiVersions"].startswith("0 to ")


@pytest.mark.side_by_side
def test_dumping_a_log_that_is_being_written(broker, topic):
    """The format on disk is Kafka's while the broker runs, not only after a stop."""
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(idempotent=True, compression="gzip")) as producer:
        producer.produce(topic, [Message(b"%d" % n, b"k") for n in range(100)])
    (log,) = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    dumped = run(tools.DUMP_LOG_SEGMENTS, "--deep-iteration", "--print-data-log", "--files", str(log)).stdout
    assert [int(n) for n in re.findall(r"^\| offset: (\d+) ", dumped, re.MULTILINE)] == list(range(100))
    assert "isvalid: false" not in dumped


def test_console_consumer_waits_for_records(broker, topic, admin, unique, tmp_path):
    """A consumer that polls an empty topic receives a record at once."""
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"]
    with RunningTool(tmp_path / "out", tools.CONSOLE_CONSUMER, *arguments, "--group", unique) as consumer:
        wait_until(lambda: unique in admin.groups() and admin.describe_group(unique).state == "Stable")
        produce(broker, topic, 3)
        consumer.wait_for("2\n")
        assert "0\n1\n2\n" in consumer.terminate()


# Transactions.


def transactional(broker: Any, transactional_id: str) -> Any:
    return CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=transactional_id))


def test_transactions_are_listed_and_described(broker, tool, topic, unique):
    with transactional(broker, unique) as producer:
        producer.begin()
        producer.produce(topic, [Message(b"%d" % n) for n in range(3)])
        listed = table(tool(tools.TRANSACTIONS, "list", "--transactional-id-pattern", f"{unique}.*"))
        assert [(row["TransactionalId"], row["TransactionState"]) for row in listed] == [(unique, "Ongoing")]
        mine = ["--transactional-id-pattern", f"{unique}.*"]
        assert table(tool(tools.TRANSACTIONS, "list", "--duration-filter", "3600000", *mine)) == []

        (reported,) = table(tool(tools.TRANSACTIONS, "describe", "--transactional-id", unique))
        assert (reported["TransactionState"], reported["TransactionTimeoutMs"]) == ("Ongoing", "60000")
        assert (reported["ProducerId"], reported["TopicPartitions"]) == (listed[0]["ProducerId"], f"{topic}-0")

        of_partition = ["--topic", topic, "--partition", "0"]
        (state,) = table(tool(tools.TRANSACTIONS, "describe-producers", *of_partition))
        assert (state["ProducerId"], state["LastSequence"]) == (reported["ProducerId"], "2")
        assert state["CurrentTransactionStartOffset"] == "0"
        hanging = tool(tools.TRANSACTIONS, "find-hanging", *of_partition, "--max-transaction-timeout", "0")
        assert table(hanging) == []

        producer.commit()
        (state,) = table(tool(tools.TRANSACTIONS, "describe-producers", *of_partition))
        assert state["CurrentTransactionStartOffset"] == "None"
        (reported,) = table(tool(tools.TRANSACTIONS, "describe", "--transactional-id", unique))
        assert reported["TransactionState"] == "CompleteCommit"
    missing = tool(tools.TRANSACTIONS, "describe", "--transactional-id", f"{unique}-missing", check=False)
    assert missing.returncode == 1
    assert "could not be found" in missing.stderr


def test_a_transaction_is_aborted_by_its_offset(broker, tool, topic, unique):
    """Admin.abortTransaction."""
    with transactional(broker, unique) as producer:
        producer.begin()
        producer.produce(topic, [Message(b"hangs")])
        produce(broker, topic, 1)
        of_partition = ["--topic", topic, "--partition", "0"]
        nothing = tool(tools.TRANSACTIONS, "abort", *of_partition, "--start-offset", "5", check=False)
        assert nothing.returncode == 1
        tool(tools.TRANSACTIONS, "abort", *of_partition, "--start-offset", "0")
        (state, *_) = table(tool(tools.TRANSACTIONS, "describe-producers", *of_partition))
        assert state["CurrentTransactionStartOffset"] == "None"
        with CLIENT.Consumer(broker.bootstrap_servers, ConsumerOptions(committed_only=True)) as consumer:
            consumer.assign([(topic, 0)])
            assert [record.value for record in read(consumer, 1)] == [b"0"]


def test_a_producer_is_fenced_from_outside(broker, tool, topic, unique):
    """Admin.fenceProducers."""
    with transactional(broker, unique) as producer:
        producer.begin()
        producer.produce(topic, [Message(b"fenced")])
        tool(tools.TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", unique)
        (reported,) = table(tool(tools.TRANSACTIONS, "describe", "--transactional-id", unique))
        assert reported["TransactionState"] in ("CompleteAbort", "Empty")
        with pytest.raises(ClientError):
            producer.commit()


def test_a_hanging_transaction_is_found_and_aborted(start_broker, unique, make_admin):
    """Without verification a late batch opens a transaction that is unknown to every coordinator."""
    broker = start_broker({"transaction.partition.verification.enable": "false"})
    with make_admin(broker) as admin:
        admin.create_topic(unique)
    [late] = frames.leave_hanging(broker.port, unique, unique)
    to_broker = ["--bootstrap-server", broker.bootstrap_servers]
    of_partition = ["--topic", unique, "--partition", "0"]

    def found() -> list[dict[str, str]]:
        result = run(
            tools.TRANSACTIONS,
            *to_broker,
            "find-hanging",
            "--broker-id",
            "1",
            "--topic",
            unique,
            "--max-transaction-timeout",
            "0",
        )
        return table(result)

    (hanging,) = wait_until(found)
    assert (hanging["ProducerId"], hanging["StartOffset"]) == (str(late.producer_id), "0")
    run(tools.TRANSACTIONS, *to_broker, "abort", *of_partition, "--start-offset", hanging["StartOffset"])
    assert found() == []


def test_the_feature_of_transactions(start_broker, unique, make_admin):
    """The feature is described, lowered and raised again; clients follow it."""
    broker = start_broker()

    def features(*arguments: str, **options: Any) -> ToolResult:
        return run(tools.FEATURES, "--bootstrap-server", broker.bootstrap_servers, *arguments, **options)

    def level() -> tuple[str, str, str]:
        (reported,) = re.findall(
            r"Feature: transaction\.version\s+SupportedMinVersion: (\d+)\s+SupportedMaxVersion: (\d+)\s+"
            r"FinalizedVersionLevel: (\d+)",
            features("describe").stdout,
        )
        return reported

    def epoch_after_a_commit() -> int:
        with transactional(broker, unique) as producer:
            producer.begin()
            producer.produce(unique, [Message(b"x")])
            producer.commit()
            described = run(
                tools.TRANSACTIONS,
                "--bootstrap-server",
                broker.bootstrap_servers,
                "describe",
                "--transactional-id",
                unique,
            )
            return int(table(described)[0]["ProducerEpoch"])

    with make_admin(broker) as admin:
        admin.create_topic(unique)
    assert level() == ("0", "2", "2")
    dry = features("downgrade", "--feature", "transaction.version=1", "--dry-run")
    assert "transaction.version can be downgraded to 1" in dry.stdout
    assert level() == ("0", "2", "2")
    features("downgrade", "--feature", "transaction.version=1")
    assert wait_until(lambda: level() == ("0", "2", "1"))
    assert epoch_after_a_commit() == 0
    features("upgrade", "--feature", "transaction.version=2")
    assert wait_until(lambda: level() == ("0", "2", "2"))
    refused = features("upgrade", "--feature", "transaction.version=3", check=False)
    assert refused.returncode == 1


def test_the_performance_producer_in_transactions(broker, tool, topic, unique):
    load = ["--topic", topic, "--num-records", "3000", "--record-size", "100", "--throughput", "-1"]
    produced = tool(
        tools.PRODUCER_PERFORMANCE,
        *load,
        "--transactional-id",
        unique,
        "--transaction-duration-ms",
        "50",
        "--command-property",
        "acks=all",
    )
    assert "3000 records sent" in produced.stdout
    result = tool(
        tools.CONSOLE_CONSUMER,
        "--topic",
        topic,
        "--from-beginning",
        "--isolation-level",
        "read_committed",
        "--max-messages",
        "3000",
        "--timeout-ms",
        "20000",
    )
    assert len(result.lines) == 3000


def test_the_console_consumer_by_isolation(broker, tool, topic, unique):
    with transactional(broker, unique) as producer:
        for value in (b"aborted", b"committed"):
            producer.begin()
            producer.produce(topic, [Message(value)])
            if value == b"aborted":
                producer.abort()
            else:
                producer.commit()
    # The aborted record is the first one. Its start and join of a group may take a busy machine long.
    arguments = ["--topic", topic, "--from-beginning", "--timeout-ms", "60000"]
    committed = tool(tools.CONSOLE_CONSUMER, *arguments, "--isolation-level", "read_committed", "--max-messages", "1")
    everything = tool(
        tools.CONSOLE_CONSUMER, *arguments, "--isolation-level", "read_uncommitted", "--max-messages", "2"
    )
    assert committed.lines == ["committed"]
    assert everything.lines == ["aborted", "committed"]
