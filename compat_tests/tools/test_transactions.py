"""`odradek transaction`, compared with kafka-transactions."""

import re
from pathlib import Path

import pytest

from compat_tests import transaction_frames as frames
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.tools import run
from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions, wait_until
from odradek.tools.cli.main import main

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

CLIENT = load("confluent")


def table(result):
    """Return the rows of a table of Kafka's tool by its headings."""
    heading, *rows = [line.split() for line in result.lines]
    return [dict(zip(heading, row, strict=False)) for row in rows]


@pytest.fixture
def ongoing(broker, topic, unique):
    """A transaction with three records in a topic of its name."""
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=unique)) as producer:
        producer.begin()
        producer.produce(topic, [Message(b"%d" % n) for n in range(3)])
        yield unique
        producer.abort()


def test_transactions(odradek, tool, ongoing):
    [row] = odradek("transaction", "list", "--transactional-id-pattern", f"{ongoing}.*", "--json").json
    [by_tool] = table(tool(tools.TRANSACTIONS, "list", "--transactional-id-pattern", f"{ongoing}.*"))
    assert [str(value) for value in row.values()] == [
        by_tool[key] for key in ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
    ]
    assert row in odradek("transaction", "list", "--state", "Ongoing", "--json").json
    assert odradek("transaction", "list", "--producer-id", str(row["producer_id"]), "--json").json == [row]
    long_open = odradek("transaction", "list", "--duration-filter", "3600000", "--json").json
    assert row not in long_open
    assert odradek("transaction", "list", "--state", "Odd", code=2).err == (
        "odradek: there is no transaction state Odd; there are Empty, Ongoing, PrepareCommit, PrepareAbort, "
        "CompleteCommit, CompleteAbort, PrepareEpochFence, Dead\n"
    )

    shown = odradek("transaction", "describe", ongoing, "--json").json
    [described] = table(tool(tools.TRANSACTIONS, "describe", "--transactional-id", ongoing))
    pairs = {
        "coordinator": "CoordinatorId",
        "producer_id": "ProducerId",
        "producer_epoch": "ProducerEpoch",
        "state": "TransactionState",
        "timeout_ms": "TransactionTimeoutMs",
    }
    assert {key: str(shown[key]) for key in pairs} == {key: described[name] for key, name in pairs.items()}
    assert shown["partitions"] == [described["TopicPartitions"]] and shown["duration_ms"] >= 0
    missing = odradek("transaction", "describe", f"{ongoing}x", code=1).err
    assert missing.startswith(f"odradek: transactional id {ongoing}x does not exist; did you mean {ongoing}")


def test_producers(odradek, tool, topic, ongoing):
    [row] = odradek("transaction", "describe-producers", topic, "0", "--json").json
    [by_tool] = table(tool(tools.TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0"))
    pairs = {
        "producer_id": "ProducerId",
        "producer_epoch": "ProducerEpoch",
        "last_sequence": "LastSequence",
        "last_timestamp_ms": "LastTimestamp",
        "transaction_start_offset": "CurrentTransactionStartOffset",
    }
    assert {key: str(row[key]) for key in pairs} == {key: by_tool[name] for key, name in pairs.items()}
    # The coordinator has this transaction, so that it does not hang.
    assert (
        odradek("transaction", "find-hanging", "--topic", topic, "--max-transaction-timeout", "0", "--json").json == []
    )
    refused = odradek("transaction", "abort", topic, "0", "--start-offset", "0", "--yes", code=1).err
    assert "is not hanging" in refused
    assert "has no partition 8" in odradek("transaction", "describe-producers", topic, "8", code=1).err


def dump_by_tool(broker, topic, partition):
    """Return the batches and records in a partition, as DumpLogSegments shows them, without times and checksums."""
    files = sorted(map(str, Path(broker.data_dir).glob(f"{topic}-{partition}/*.log")))
    shown = run(tools.DUMP_LOG_SEGMENTS, "--deep-iteration", "--print-data-log", "--files", ",".join(files))
    lines = [line for line in shown.lines if line.startswith(("baseOffset", "| "))]
    return [re.sub(r"(CreateTime|crc|producerId): \d+ ", "", line) for line in lines]


def test_an_abort_beside_that_of_the_tool(start_broker, unique, capsys):
    """Two transactions hang; the command ends one of them and Kafka's tool the other."""
    broker = start_broker({"transaction.partition.verification.enable": "false"})
    address = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["topic", "create", unique, "-p", "2", *address]) == 0
    frames.leave_hanging(broker.port, unique, f"{unique}-0", f"{unique}-1")

    def describe_by_tool(partition):
        options = ["--topic", unique, "--partition", str(partition)]
        [row] = table(run(tools.TRANSACTIONS, *address, "describe-producers", *options))
        return {key: row[key] for key in row if key not in ("ProducerId", "LastTimestamp")}

    def abort(partition, offset, code):
        capsys.readouterr()
        options = [unique, str(partition), "--start-offset", str(offset)]
        assert main(["transaction", "abort", *options, "--yes", *address]) == code
        return capsys.readouterr()

    def abort_by_tool(partition, offset):
        options = ["--topic", unique, "--partition", str(partition), "--start-offset", str(offset)]
        return run(tools.TRANSACTIONS, *address, "abort", *options, check=False)

    assert describe_by_tool(0) == describe_by_tool(1)
    assert describe_by_tool(0)["CurrentTransactionStartOffset"] == "0"
    open_lines = dump_by_tool(broker, unique, 0)
    assert abort(0, 0, 0).out == f"transaction {unique}-0 aborted\n"
    assert abort_by_tool(1, 0).returncode == 0
    assert describe_by_tool(0) == describe_by_tool(1)
    assert describe_by_tool(0)["CurrentTransactionStartOffset"] == "None"
    lines = dump_by_tool(broker, unique, 0)
    assert lines == dump_by_tool(broker, unique, 1)
    assert lines[:2] == open_lines and "endTxnMarker: ABORT coordinatorEpoch: 0" in lines[3]
    for offset in (0, 7):
        again = abort_by_tool(1, offset)
        message = f"Could not find any open transactions starting at offset {offset} on partition {unique}-1"
        assert again.returncode == 1 and message in again.stderr
        assert f"no transaction that is open in {unique}-0 begins at offset {offset}" in abort(0, offset, 1).err
    assert dump_by_tool(broker, unique, 0) == dump_by_tool(broker, unique, 1) == lines


def test_a_hanging_transaction(start_broker, unique, capsys):
    """Without verification a late batch opens a transaction that is unknown to every coordinator."""
    broker = start_broker({"transaction.partition.verification.enable": "false"})
    address = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["topic", "create", unique, "-p", "1", *address]) == 0
    [late] = frames.leave_hanging(broker.port, unique, unique)

    def find():
        capsys.readouterr()
        assert main(["transaction", "find-hanging", *address, "--max-transaction-timeout", "0"]) == 0
        return capsys.readouterr().out.splitlines()[1:]

    [hanging] = wait_until(find)
    topic, partition, producer_id, _, _, offset = hanging.split()
    assert (topic, partition, producer_id, offset) == (unique, "0", str(late.producer_id), "0")
    arguments = ["find-hanging", "--broker-id", "1", "--topic", unique, "--max-transaction-timeout", "0"]
    [by_tool] = table(run(tools.TRANSACTIONS, *address, *arguments))
    assert (by_tool["ProducerId"], by_tool["StartOffset"]) == (producer_id, offset)
    abort = ["transaction", "abort", unique, "0", *address, "--start-offset"]
    assert main([*abort, "5", "--yes"]) == 1
    assert f"no transaction that is open in {unique}-0 begins at offset 5" in capsys.readouterr().err
    assert main([*abort, offset]) == 2
    assert main([*abort, offset, "--yes"]) == 0
    assert find() == []


def state_of(odradek, transactional_id):
    return odradek("transaction", "describe", transactional_id, "--json").json["state"]


def test_termination(odradek, tool, broker, topic, unique):
    names = [f"{unique}-own", f"{unique}-tool"]
    producers = [CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=name)) for name in names]
    with producers[0], producers[1]:
        for producer in producers:
            producer.begin()
            producer.produce(topic, [Message(b"x")])
        terminate = ["transaction", "terminate", names[0]]
        assert "Repeat the command with --yes" in odradek(*terminate, code=2).err
        assert odradek(*terminate, "--dry-run").out == f"transaction {names[0]} would be terminated\n"
        assert state_of(odradek, names[0]) == "Ongoing"
        assert odradek(*terminate, "--yes").out == f"transaction {names[0]} terminated\n"
        tool(tools.TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", names[1])
        states = [state_of(odradek, name) for name in names]
        # Kafka's tool repeats its request, which also fences an instance that has begun meanwhile.
        assert states[0] in ("CompleteAbort", "Empty") and states[1] == "Empty"
        for producer in producers:
            with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
                producer.commit()
    again = odradek(*terminate, "--yes", code=1).err
    assert again == f"odradek: transactional id {names[0]} has no open transaction; its state is {states[0]}\n"
    assert odradek("record", "consume", topic).out == ""


def test_termination_of_an_unknown_id(odradek, unique):
    refused = odradek("transaction", "terminate", f"{unique}-missing", "--yes", "--json", code=1)
    assert refused.errors[0]["code"] == "TRANSACTIONAL_ID_NOT_FOUND"
    assert f"{unique}-missing" not in odradek("transaction", "list").out
