"""`odradek record`, compared with Kafka's console tools and kcat."""

import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import confluent_kafka
import pytest

import odradek as odradek_package
from compat_tests import limits
from compat_tests.apache_kafka import tools
from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions
from compat_tests.tools.fake_registry import serving_registry
from odradek.tools.cli.main import main

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

CLIENT = load("confluent")
TIME_MS = 1_700_000_000_000
BYTES = bytes(range(256))
FORMAT = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")


@pytest.fixture
def stdin(monkeypatch):
    """Return a function that sets standard input."""

    def set_stdin(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return set_stdin


@pytest.fixture
def filled(broker, admin, unique):
    """A topic with 6 records in partition 0, a second apart, and 3 in partition 1."""
    admin.create_topic(unique, 2)
    records = [Message(b'{"n": %d}' % n, b"k%d" % n, (("h", b"%d" % n),), 0, TIME_MS + n * 1000) for n in range(6)]
    records += [Message(value, b"x", (), 1, TIME_MS) for value in (b"plain", None, BYTES)]
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(unique, records)
    return unique


def consume_all(broker, topic, partitions=1, isolation="read_uncommitted"):
    """Return (partition, timestamp, key, value, headers) of all records, by confluent-kafka."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "none", "isolation.level": isolation}
    consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(partitions)])
    found, ended = [], 0
    give_up_at = time.monotonic() + limits.CONDITION_S
    while ended < partitions and time.monotonic() < give_up_at:
        for one in consumer.consume(100, 0.05):
            if one.error():
                ended += 1
            else:
                found.append((one.partition(), one.timestamp()[1], one.key(), one.value(), one.headers()))
    consumer.close()
    return sorted(found, key=lambda row: row[0])


def lines(text):
    return sorted(text.splitlines())


def test_lines_are_those_of_the_console_consumer(odradek, tool, filled):
    arguments = ["--topic", filled, "--partition", "0", "--offset", "earliest", "--max-messages", "6"]
    shown = tool(tools.CONSOLE_CONSUMER, *arguments, *FORMAT)
    mine = odradek("record", "consume", filled, "-p", "0", "-K", ":").out
    assert mine.splitlines() == shown.lines
    assert odradek("record", "consume", filled, "-p", "0").out.splitlines() == [f'{{"n": {n}}}' for n in range(6)]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_templates_and_bytes_are_those_of_kcat(broker, filled, capfdbinary):
    template = "%t %p %o %T %K %S [%h] %k=%s\\n"
    command = ["kcat", "-C", "-b", broker.bootstrap_servers, "-t", filled, "-p", "1", "-o", "beginning", "-e", "-q"]
    expected = subprocess.run([*command, "-f", template], capture_output=True, timeout=40, check=True).stdout
    consume = ["record", "consume", filled, "-p", "1", "--bootstrap-server", broker.bootstrap_servers]
    assert main([*consume, "-f", template]) == 0
    assert capfdbinary.readouterr().out == expected
    plain = subprocess.run(command, capture_output=True, timeout=40, check=True).stdout
    assert main(consume) == 0
    assert capfdbinary.readouterr().out == plain == b"plain\n\n" + BYTES + b"\n"


def test_positions_and_filters(odradek, filled):
    for options, expected in (
        (["-o", "4"], [4, 5]),
        (["-o", "-2"], [4, 5]),
        (["-o", "beginning", "-n", "2"], [0, 1]),
        (["-o", "end"], []),
        (["-o", "99"], []),
        (["-o", "2023-11-14T22:13:23"], [3, 4, 5]),
        (["-o", f"@{TIME_MS + 4500}"], [5]),
        (["-o", "1h"], []),
        (["-o", "1", "--until", "3"], [1, 2]),
        (["--until", "2023-11-14T22:13:22"], [0, 1]),
        (["--until", "-1"], [0, 1, 2, 3, 4]),
        (["--key", "k2"], [2]),
        (["--header", "h=3"], [3]),
        (["--header", "h", "-n", "1"], [0]),
        (["--grep", "[45]}"], [4, 5]),
        (["--filter", "value.n > 1 and offset < 4", "--filter", "not key == 'k2'"], [3]),
    ):
        shown = odradek("record", "consume", filled, "-p", "0", "-f", "%o\\n", *options)
        assert [int(line) for line in shown.out.split()] == expected, options


def test_several_topics_and_patterns(odradek, admin, filled, broker):
    other = f"{filled}-b"
    admin.create_topic(other, 1)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(other, [Message(b"1")])
    expected = sorted(
        [f"{filled} {offset}" for offset in (0, 1, 2)] + [f"{filled} {n}" for n in range(6)] + [f"{other} 0"]
    )
    assert lines(odradek("record", "consume", filled, other, "-f", "%t %o\\n").out) == expected
    assert lines(odradek("record", "consume", "--regex", f"{filled}.*", "-f", "%t %o\\n").out) == expected
    assert odradek("record", "consume", "--regex", f"{filled}x", code=1).err.startswith("odradek: no topic matches")


def test_json_is_produced_again_exactly(odradek, broker, admin, filled, stdin):
    copy = f"{filled}-copy"
    admin.create_topic(copy, 2)
    shown = odradek("record", "consume", filled, "--json").out
    stdin(shown.encode())
    assert odradek("record", "produce", copy, "-i", "json").out == f"9 records produced to {copy}\n"
    assert consume_all(broker, copy, 2) == consume_all(broker, filled, 2)


def test_transactions(odradek, broker, topic, stdin):
    stdin(b"1\n2\n")
    odradek("record", "produce", topic, "--transaction")
    stdin(b"a:3\nb\n")
    failed = odradek("record", "produce", topic, "--transaction", "-K", ":", "--json", code=1)
    assert failed.json == {"topic": topic, "produced": 0, "failed": 1}
    assert failed.errors == [{"code": "FAILED", "message": "line 2: the key separator : is missing"}]
    assert odradek("record", "consume", topic).out == "1\n2\n"
    every = odradek("record", "consume", topic, "--isolation-level", "read_uncommitted").out
    assert every == "1\n2\n3\n"


def test_lines_that_are_produced(odradek, tool, topic, stdin):
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        stdin(b"k1:%b\nk2:NIL\nk3:\n\xc3\xa9:last" % codec.encode())
        options = ["-K", ":", "--null", "NIL", "-H", "a=1", "-H", "b=", "-z", codec]
        assert odradek("record", "produce", topic, *options).out == f"4 records produced to {topic}\n"
    shown = tool(
        tools.CONSOLE_CONSUMER, "--topic", topic, "--from-beginning", "--max-messages", "20",
        *FORMAT, "--formatter-property", "print.headers=true",
    )  # fmt: skip
    assert shown.lines == [
        f"a:1,b::{line}"
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        for line in (f"k1:{codec}", "k2:null", "k3:", "é:last")
    ]


def test_keys_are_in_the_partitions_of_kafkas_producer(odradek, tool, broker, admin, unique, stdin):
    admin.create_topic(unique, 5)
    text = "".join(f"key{n}:{n}\n" for n in range(40))
    parse = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool(tools.CONSOLE_PRODUCER, "--topic", unique, *parse, stdin=text)
    stdin(text.encode())
    odradek("record", "produce", unique, "-K", ":")
    rows = consume_all(broker, unique, 5)
    assert len(rows) == 80
    partitions: dict[bytes, set[int]] = {}
    for partition, _, key, _, _ in rows:
        partitions.setdefault(key, set()).add(partition)
    assert {len(each) for each in partitions.values()} == {1}


def test_files_are_records(odradek, broker, topic, tmp_path):
    (tmp_path / "a").write_bytes(BYTES)
    (tmp_path / "b").write_bytes(b"1\n2\n")
    files = [str(tmp_path / name) for name in "ab"]
    odradek("record", "produce", topic, *files, "-i", "files", "--key", "f", "-p", "0", "--acks", "1")
    odradek("record", "produce", topic, files[1])
    rows = [(key, value) for _, _, key, value, _ in consume_all(broker, topic)]
    assert rows == [(b"f", BYTES), (b"f", b"1\n2\n"), (None, b"1"), (None, b"2")]
    assert "No such file" in odradek("record", "produce", topic, str(tmp_path / "c"), code=2).err


def test_records_that_fail(odradek, admin, unique, stdin):
    admin.create_topic(unique, 1, configs={"max.message.bytes": "2000"})
    stdin(b"1\n" + b"x" * 5000 + b"\n3\n")
    done = odradek("record", "produce", unique, "--json", "--acks", "1", code=1)
    assert done.json["produced"] + done.json["failed"] == 3
    assert any(error["message"].startswith("line 2: MSG_SIZE_TOO_LARGE: ") for error in done.errors)
    stdin(b'{"value": 1, "partition": 7}\n{"value": 2}\n{"valu": 3}\n')
    done = odradek("record", "produce", unique, "-i", "json", code=1)
    assert done.out == f"1 record produced to {unique}, 2 failed\n"
    assert sorted(done.err.splitlines())[0].startswith("odradek: line 1: UNKNOWN_PARTITION: ")
    assert sorted(done.err.splitlines())[1].startswith("odradek: line 3: there is no field valu; did you mean value")


def test_a_dry_run_writes_nothing(odradek, tool, admin, unique, stdin):
    admin.create_topic(unique, 2)
    produce = ["record", "produce", unique, "--dry-run"]
    stdin(b"1\n2\n3")
    assert odradek(*produce).out == f"3 records would be produced to {unique}\n"
    text = b'{"value": 1, "partition": 1}\n{"value": 2, "partition": 2}\n{"valu": 3}\n{"key": "a"}\n'
    stdin(text)
    planned = odradek(*produce, "-i", "json", "--json", code=1)
    assert planned.json == {"topic": unique, "produced": 2, "failed": 2, "dry_run": True}
    stdin(text)
    assert odradek(*produce, "-i", "json", "--transaction", "--json", code=1).json["produced"] == 0
    stdin(b"x\n")
    outside = odradek(*produce, "-p", "2", code=1)
    assert outside.out == f"0 records would be produced to {unique}, 1 would fail\n"
    ends = tool(tools.GET_OFFSETS, "--topic", unique).lines
    assert ends == [f"{unique}:0:0", f"{unique}:1:0"]
    # The records that fail are those that a producer refuses, with the same causes.
    stdin(text)
    done = odradek("record", "produce", unique, "-i", "json", "--json", code=1)
    assert {key: done.json[key] for key in ("produced", "failed")} == {"produced": 2, "failed": 2}

    def causes(errors):
        return sorted(error["message"].split(": ")[:2] for error in errors)

    expected = [
        ["line 2", "UNKNOWN_PARTITION"],
        ["line 3", "there is no field valu; did you mean value or value_base64?"],
    ]
    assert causes(done.errors) == causes(planned.errors) == expected
    missing = odradek("record", "produce", f"{unique}-missing", "--dry-run", code=1).err
    assert missing.endswith(f"; `odradek topic create {unique}-missing` creates it\n")


def test_a_group_continues_where_it_stopped(odradek, tool, filled):
    group = ["record", "consume", filled, "--group", f"{filled}-g", "-f", "%p %o\\n"]
    first = odradek(*group, "-n", "4").out
    assert len(first.splitlines()) == 4
    assert len(odradek(*group, "--no-commit").out.splitlines()) == 5
    second = odradek(*group).out
    expected = sorted([f"0 {n}" for n in range(6)] + [f"1 {n}" for n in range(3)])
    assert sorted([*first.splitlines(), *second.splitlines()]) == expected
    assert odradek(*group).out == ""
    described = tool(tools.CONSUMER_GROUPS, "--describe", "--group", f"{filled}-g").stdout
    assert [line.split()[3:6] for line in described.splitlines() if f"{filled}-g" in line] == [
        ["6", "6", "0"],
        ["3", "3", "0"],
    ]


def test_decoding(odradek, filled):
    odradek("record", "consume", filled, "-p", "0", "--value-format", "json", "--strict")
    done = odradek("record", "consume", filled, "-p", "1", "--value-format", "json", "--json", "--strict", code=1)
    first, second, third = [json.loads(line) for line in done.out.splitlines()]
    assert first["value"] == "plain" and "this is no JSON" in first["errors"][0]
    assert second["value"] is None and "errors" not in second
    assert "value_base64" in third
    [error] = done.errors
    assert error["message"].startswith(
        f"2 records could not be decoded, written as stored; {filled}-1 offset 0: value: "
    )
    assert odradek("record", "consume", filled, "-p", "1", "--value-format", "hex").out.splitlines()[2] == BYTES.hex()
    shown = odradek("record", "consume", filled, "-p", "0", "-n", "1", "--key-format", "int16", "--json").json
    assert shown["key"] == int.from_bytes(b"k0", "big")


def test_following(broker, filled):
    arguments = ["--follow", "-o", "5", "-p", "0", "-n", "2", "--bootstrap-server", broker.bootstrap_servers]
    command = [sys.executable, "-m", "odradek", "record", "consume", filled, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"n": 5}\n'
        with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
            producer.produce(filled, [Message(b"later", None, (), 0)])
        assert process.stdout.readline() == b"later\n"
        assert process.wait(limits.CONDITION_S) == 0


@contextmanager
def terminal():
    """Open a terminal for a command; the value is its end, and the parts of what is written to it, complete at the end.

    It is read meanwhile, because a terminal takes some kilobytes only: a slow command draws its progress more often.
    """
    master, slave = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        # The read fails with EIO when no process has the other end open.
        with suppress(OSError):
            while part := os.read(master, 1 << 16):
                parts.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield slave, parts
    finally:
        os.close(slave)
        thread.join()
        os.close(master)


@pytest.mark.parametrize("options", [[], ["--group", "of-progress"], ["-n", "4"]])
def test_progress_while_records_go_to_a_file(broker, filled, tmp_path, options):
    """The bar is on standard error if that is a terminal, and standard output has the records only."""
    consume = [sys.executable, "-m", "odradek", "record", "consume", filled, "-f", "%p %o\\n", *options]
    command = [*consume, "--bootstrap-server", broker.bootstrap_servers]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    file = tmp_path / "records"
    with file.open("wb") as output, terminal() as (slave, parts):
        done = subprocess.run(command, stdout=output, stderr=slave, env=environment, timeout=60, check=False)
    shown = b"".join(parts).decode()
    count = 4 if "-n" in options else 9
    total = "?" if "--group" in options else str(count)
    assert done.returncode == 0
    assert f"consuming {filled}" in shown and f"{count}/{total}" in shown
    assert len(file.read_text().splitlines()) == count and "consuming" not in file.read_text()
    assert b"consuming" not in subprocess.run(command, capture_output=True, timeout=60, check=True).stderr


def test_invalid_options(odradek, topic):
    for (command, *options), message in (
        (["consume", "-p", "x"], "x is neither a partition nor a range"),
        (["consume", "-o", "soon"], "soon is no position"),
        (["consume", "-f", "%x"], "there is no field %x"),
        (["consume", "--filter", "vale > 1"], "did you mean value?"),
        (["consume", "--value-format", "jsn"], "there is no format jsn; did you mean json?"),
        (["consume", "--value-format", "registry"], "needs the address of a schema registry"),
        (["consume", "--follow", "--until", "5"], "--follow excludes --until"),
        (["consume", "--json", "-f", "%s"], "--json excludes --format"),
        (["consume", "--group", "g", "-o", "5"], "--group permits only --from beginning and end"),
        (["produce", "-i", "json", "-K", ":"], "--key-separator excludes --input json"),
        (["produce", "--transaction", "--acks", "1"], "--transaction excludes --acks 1"),
        (["produce", "-H", "x"], "x is not name=value"),
    ):
        done = odradek("record", command, topic, *options, code=2)
        assert message in done.err and done.err.count("\n") == 1 and done.out == "", options


def test_topics_and_partitions_that_do_not_exist(odradek, topic):
    assert "has no partition 9, only 0 to 0" in odradek("record", "consume", topic, "-p", "9", code=1).err
    for command in ("consume", "produce"):
        assert "did you mean" in odradek("record", command, f"{topic}x", code=1).err


def test_the_examples_of_the_documentation(odradek, admin, stdin, monkeypatch, tmp_path):
    """Run the examples in docs/cli.md in their order, except --follow, which does not end."""
    page = Path(odradek_package.__file__).resolve().parent.parent / "docs" / "cli.md"
    section = page.read_text("utf-8").partition("## Records\n")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    Path("order.avsc").write_text('{"type": "map", "values": "int"}')
    Path("orders.json").write_text('{"key": "a1", "value": "{\\"amount\\": 12}", "partition": 0}\n')
    for name in ("a.png", "b.png"):
        Path(name).write_bytes(BYTES)
    for name in ("orders", "payments"):
        admin.create_topic(name, 1)
    ran = 0
    with serving_registry() as registry:
        (tmp_path / "odradek").mkdir()
        profile = f'[documented]\n"schema.registry.url" = "{registry.url}"\n'
        (tmp_path / "odradek" / "profiles.toml").write_text(profile)
        monkeypatch.setenv("ODRADEK_PROFILE", "documented")
        for example in re.findall(r"^    odradek (.*)$", section, re.MULTILINE):
            stdin(b'{"amount": 3}\n' if "registry" in example or "avro" in example else b"k1:{}\n")
            if "--follow" not in example:
                ran += 1
                arguments = shlex.split(example)
                if "avro" in arguments and "consume" in arguments:
                    arguments += ["--from", "-1"]
                if arguments[1] == "consume" and "--json" not in arguments:
                    # The bytes of the images are no text.
                    arguments += ["--json"] if "--format" not in arguments else ["--key", "a1"]
                done = odradek(*arguments)
                assert done.out or "--until" in arguments, example
    for name in ("orders", "payments"):
        odradek("topic", "delete", name, "--yes")
    assert ran >= 14


def test_a_topic_that_does_not_exist(odradek, unique, stdin):
    stdin(b"1\n")
    refused = odradek("record", "produce", f"{unique}-missing", code=1).err
    assert refused.endswith(f"; `odradek topic create {unique}-missing` creates it\n")
