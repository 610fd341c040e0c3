"""Changes by the console, compared with what other clients report."""

import re

import pytest
from confluent_kafka import Producer

from compat_tests.clients.common import wait_until

pytestmark = [pytest.mark.side_by_side]


def test_a_topic_is_created_configured_and_deleted(console, odradek, unique):
    form = {
        "name": unique,
        "partitions": "3",
        "replicas": "1",
        "configs": "retention.ms=1000\r\nmax.message.bytes=7777",
    }
    assert "Create the topic" in console.submit("/new-topic", {"name": unique}).text
    checked = console.submit("/new-topic", {**form, "step": "check"})
    assert "Create the topic" in checked.text
    odradek("topic", "describe", unique, code=1)
    assert "The topic was created" in console.submit("/new-topic", {**form, "step": "apply"}).text
    wait_until(lambda: unique in odradek("topic", "list").out)
    [shown] = odradek("topic", "describe", unique, "--json").json
    assert (shown["partition_count"], shown["configs"]) == (3, {"retention.ms": "1000", "max.message.bytes": "7777"})
    assert "TOPIC_ALREADY_EXISTS" in console.submit("/new-topic", form, status=400).text
    assert "is not name=value" in console.submit("/new-topic", {**form, "configs": "x"}, status=400).text
    assert (
        "is not a number from 1 to 2147483647"
        in console.submit("/new-topic", {**form, "partitions": "0"}, status=400).text
    )

    path = f"/topics/{unique}/config"
    change = {"value.retention.ms": "2000", "value.cleanup.policy": "compact", "reset": "max.message.bytes"}
    preview = console.submit(path, {**change, "step": "check"})
    assert preview.find_row("retention.ms")[1:] == ["1000", "2000"]
    assert preview.find_row("max.message.bytes")[1] == "7777" and len(preview.rows) == 4
    assert "retention.ms=1000" in odradek("topic", "describe", unique).out
    fields = dict(re.findall(r'type="hidden" name="([\w.]+)" value="([^"]*)"', preview.text))
    console.submit(path, {**fields, **console.find_token(path), "step": "apply"})
    expected = {"retention.ms": "2000", "cleanup.policy": "compact"}
    wait_until(lambda: odradek("topic", "describe", unique, "--json").json[0]["configs"] == expected)
    assert "INVALID_CONFIG" in console.submit(path, {"value.retention.ms": "soon"}, status=400).text
    assert "No value differs" in console.submit(path, {"value.retention.ms": "2000"}, status=400).text

    console.submit(f"/topics/{unique}/delete", {"confirmed": "x"}, status=400)
    assert unique in odradek("topic", "list").out
    assert "The topic was deleted" in console.submit(f"/topics/{unique}/delete", {"confirmed": unique}).text
    wait_until(lambda: unique not in odradek("topic", "list").out)
    mine = [line.split(" 127.0.0.1 ")[1] for line in console.changes if unique in line]
    assert mine == [
        f"created topic {unique}",
        f"configured topic {unique}: cleanup.policy=compact, max.message.bytes=default, retention.ms=2000",
        f"deleted topic {unique}",
    ]


def test_a_record_is_produced_where_clients_produce_its_key(console, broker, admin, unique):
    admin.create_topic(unique, 7)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
    placed = []
    producer = Producer(settings)
    producer.produce(unique, "other", "a key", on_delivery=lambda error, message: placed.append(message.partition()))
    producer.flush()
    path = f"/topics/{unique}/produce"
    form = {"key": "a key", "value": "line 1\r\n<b>", "headers": "a: 1\r\nb:<i>", "partition": ""}
    done = console.submit(path, form)
    assert done.url.endswith(f"/topics/{unique}/records/{placed[0]}/1?done=produced")
    assert console.get(f"/topics/{unique}/records/{placed[0]}/1/value").content == b"line 1\n<b>"
    assert "&lt;i&gt;" in done.text and "The record was produced" in done.text
    null = console.submit(path, {"value_as": "null", "value": "x", "partition": "6"})
    base = null.url.removeprefix(console.url).removesuffix("?done=produced")
    assert base.startswith(f"/topics/{unique}/records/6/")
    console.get(f"{base}/key", 404)
    console.get(f"{base}/value", 404)
    assert "is not hexadecimal" in console.submit(path, {"value": "0g", "value_as": "hex"}, status=400).text
    assert "has no partition 7" in console.submit(path, {"value": "x", "partition": "7"}, status=400).text


def test_a_group_is_reset(console, broker, odradek, topic, unique):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(9):
        producer.produce(topic, str(index), timestamp=1000 * (index + 1))
    producer.flush()
    assert "with 1 partition and up to 9 records will be deleted" in console.get(f"/topics/{topic}/delete").text
    odradek("group", "reset", unique, "--topic", topic, "--to-offset", "2", "--yes")
    path = f"/group/reset?name={unique}"

    def preview(target, at=""):
        return console.submit(path, {"target": target, "at": at, "step": "check"})

    assert preview("earliest").find_row(topic)[2:4] == ["2", "0"]
    assert preview("shift", "-1").find_row(topic)[2:4] == ["2", "1"]
    assert preview("offset", "99").find_row(topic)[2:4] == ["2", "9"]
    assert preview("time", "1970-01-01T00:00:05").find_row(topic)[2:4] == ["2", "4"]
    assert "is not a time" in console.submit(path, {"target": "time", "at": "x"}, status=400).text
    [offsets] = re.findall(r'name="offsets" value="([^"]*)"', preview("offset", "7").text)
    done = console.submit(path, {"offsets": offsets, "step": "apply"})
    assert done.find_row(topic)[2:5] == ["7", "9", "2"]
    [row] = odradek("group", "lag", unique, "--json").json
    assert row["lag"] == 2


def test_a_console_that_is_read_only(start_console, broker, topic):
    console = start_console(broker.bootstrap_servers)
    for path in ("/new-topic", f"/topics/{topic}/config", f"/topics/{topic}/delete", f"/topics/{topic}/produce"):
        assert "read-only" in console.get(path, 403).text
    token = console.find_token("/login")
    console.submit("/login", {**token, "confirmed": topic}, f"/topics/{topic}/delete", 403)
    assert f"/topics/{topic}/delete" not in console.get(f"/topics/{topic}").text
