"""Pages of the console over HTTP, compared with what other clients report."""

import json
import re
from html import unescape

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.tools.eventually import eventually

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"

pytestmark = [pytest.mark.side_by_side]


def test_cluster_brokers_and_topics(console, admin, odradek, unique):
    admin.create_topic(unique, 3)
    odradek("topic", "alter", unique, "--config", "max.message.bytes=77777")
    overview = console.get("/")
    [broker] = odradek("broker", "list", "--json").json
    assert overview.find_row(str(broker["broker"]))[1] == f"{broker['host']}:{broker['port']}"
    [disk] = odradek("broker", "disks", "--json").json
    assert disk["log_dir"] in overview.text
    configs = console.get(f"/brokers/{broker['broker']}")
    assert configs.find_row("offsets.topic.num.partitions changed")[1] == "5"
    assert "there is no live broker 777" in console.get("/brokers/777", 404).text

    def check():
        assert console.get(f"/topics?search={unique}").find_row(unique)[1:3] == ["3", "1"]
        topic = console.get(f"/topics/{unique}")
        assert topic.find_row("max.message.bytes changed")[1:] == ["77777", "1048588", "topic"]
        assert [row[:4] for row in topic.rows[1:4]] == [
            [str(index), *[str(broker["broker"])] * 3] for index in range(3)
        ]

    eventually(check)
    missing = console.get(f"/topics/{unique}x", 404)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.text and f"did you mean {unique}" in missing.text
    assert console.get("/topics/%3Cscript%3E", 404).text.count("<script") == 1


def test_records_are_listed_searched_and_downloaded(console, broker, odradek, unique):
    odradek("topic", "create", unique, "--partitions", "2", "--config", "max.message.bytes=8000000")
    large = json.dumps({"large": "x" * 5_000_000}).encode()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 8_000_000})
    for index in range(60):
        producer.produce(
            unique, f"value {index}", f"key-{index}", index % 2, timestamp=1000 + index, headers={"trace": b"abc"}
        )
    producer.produce(unique, SCRIPT, b"\x00\xff", 0, timestamp=2000)
    producer.produce(unique, large, "large", 1, timestamp=2001)
    producer.flush()

    path = f"/topics/{unique}/records"
    newest = console.get(path)
    assert len(newest.content) < 200_000
    assert [row[0] for row in newest.rows[1:4]] == ["1:30", "0:30", "1:29"]
    assert newest.rows[1][-1] == "4.77 MiB"
    assert "<script>alert" not in newest.text and "&lt;script&gt;alert(1)&lt;/script&gt;" in newest.text
    [older] = re.findall(r'rel="next" href="([^"]*)"', newest.text)
    assert [row[0] for row in console.get(path + unescape(older)).rows[1:]][-1] == "0:0"
    found = console.get(f"{path}?position=oldest&filter=key-1").rows[1:]
    assert {row[2] for row in found} == {"key-1", *(f"key-{index}" for index in range(10, 20))}
    at_time = console.get(f"{path}?position=time&at=1970-01-01T00:00:01.050&partition=0").rows
    assert (at_time[-1][0], at_time[-1][1]) == ("0:25", "1970-01-01 00:00:01.050")
    assert "is not an offset" in console.get(f"{path}?position=offset&at=x").text

    assert "trace abc" in " ".join(re.sub(r"<[^>]*>", " ", console.get(f"{path}/0/3").text).split())
    whole = console.get(f"{path}/1/30")
    assert len(whole.content) < 500_000 and "Shortened" in whole.text
    assert console.get(f"{path}/1/30/value").content == large
    assert console.get(f"{path}/0/30/key").content == b"\x00\xff"
    for missing in ("0/31", "7/0", "0/99999999999999999999", "99999999999/0"):
        assert console.get(f"{path}/{missing}", 404)
    assert len(console.get(f"{path}?position=time&at=9223372036854775807").rows) == 2
    assert "is not a time" in console.get(f"{path}?position=time&at=99999999999999999999").text
    assert "too long" in console.get(f"/topics/{'x' * 300}", 404).text

    new = json.loads(console.get(f"/topics/{unique}/tail/records?after=0:29,1:31").text)
    assert (new["count"], new["after"]) == (2, "0:31,1:31")


def test_groups(console, broker, odradek, topic, unique):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(9):
        producer.produce(topic, str(index))
    producer.flush()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{unique}/?", "client.id": "reader"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(9, 30)
        consumer.commit(message=messages[3], asynchronous=False)
        listed = console.get(f"/groups?search={unique}")
        assert listed.find_row(f"{unique}/?") == [f"{unique}/?", "Stable", "classic", "1", "5", listed.rows[1][-1]]
        [path] = re.findall(r'href="(/group\?[^"]*)"', listed.text)
        shown = console.get(unescape(path))
        assert shown.find_row("reader")[-2:] == ["1", f"{topic}: 0"]
        assert shown.find_row(topic) == [topic, "0", "4", "9", "5", "reader"]
    finally:
        consumer.close()
    assert "did you mean" in console.get(f"/group?name={unique}/", 404).text

    stored = console.get(f"/topics/__consumer_offsets/records?filter={unique}")
    [committed] = [row for row in stored.rows[1:] if unescape(row[2]).startswith(f'{{"group": "{unique}/?", "topic"')]
    assert '"offset": 4' in unescape(committed[3]) and "OFFSET_COMMIT, version" in committed[3]
    record = console.get(f"/topics/__consumer_offsets/records/{committed[0].replace(':', '/')}")
    assert "OFFSET_COMMIT" in record.text and f'"group": "{unique}/?"' in unescape(record.text)


def test_a_login_behind_a_proxy_with_tls(start_console):
    console = start_console("127.0.0.1:1", password="secret")
    assert console.get("/topics").url.endswith("/login?next=%2Ftopics")
    assert console.log_in("wrong") == ""
    plain, secure = console.log_in("secret"), console.log_in("secret", **{"X-Forwarded-Proto": "https"})
    assert "HttpOnly" in plain and "Secure" not in plain and "Secure" in secure


def test_a_cluster_that_does_not_answer(start_console):
    console = start_console("127.0.0.1:1")
    page = console.get("/topics", 502)
    assert "127.0.0.1:1" in page.text and "is the broker running" in page.text
    assert console.get("/login").status == 200


def test_the_lag_of_a_pipeline(start_console, broker, admin, unique, tmp_path):
    """The group that a pipeline commits to has its name."""
    admin.create_topic(unique, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(5):
        producer.produce(unique, b"x", partition=0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": unique})
    consumer.commit(offsets=[TopicPartition(unique, 0, 3)], asynchronous=False)
    consumer.close()
    (tmp_path / "copy.toml").write_text(
        f'name = "{unique}"\nbootstrap.servers = "{broker.bootstrap_servers}"\n'
        f'source.events = {{ connector = "topic", topics = "{unique}", value.format = "bytes" }}\n'
        'sink = { connector = "console" }\n'
    )
    console = start_console(broker.bootstrap_servers, pipelines=(tmp_path,))

    def check():
        row = console.get("/pipelines").find_row(unique)
        assert (row[1], row[3]) == ("has never run", "2")

    eventually(check)
    assert f'<a href="/group?name={unique}">' in console.get("/pipelines").text
