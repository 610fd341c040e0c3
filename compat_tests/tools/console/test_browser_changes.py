"""Configurations and pipelines in headless Chromium, by keyboard."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.clients.common import wait_until
from compat_tests.tools.console.page_checks import check_opened_page, check_page, read_rows, tab_to
from odradek.spark_it.definition.reader import load
from odradek.spark_it.state.lock import make_lock, write_lock
from odradek.spark_it.state.progress import Progress, write_progress

pytestmark = [pytest.mark.side_by_side]

PIPELINE = """
name = "{name}"
bootstrap.servers = "{servers}"
source.events = {{ connector = "topic", topics = "{topic}", value.format = "bytes" }}
sink = {{ connector = "console" }}
"""


def test_a_configuration_is_changed_with_a_preview_by_keyboard(browser, console, odradek, topic):
    odradek("topic", "alter", topic, "--config", "max.message.bytes=7777")
    browser.resize(1200, 800)
    check_page(browser, f"{console.url}/topics/{topic}", "topic")
    passed = tab_to(browser, "a[href$='/config']")
    assert passed[0] == "Skip to the content" and passed[-2:] == ["Produce a record", "Change the configuration"]
    browser.press_to_load("Enter")
    check_opened_page(browser, "config")
    tab_to(browser, "[name='value.cleanup.policy']")
    browser.write("nothing")
    browser.press_to_load("Enter")
    assert "INVALID_CONFIG" in browser.run("document.querySelector('[role=alert]').innerText")
    assert browser.run("document.querySelector('[name=\"value.cleanup.policy\"]').value") == "nothing"
    # The browser reports the status 400.
    browser.messages.clear()
    check_opened_page(browser, "config-error")
    tab_to(browser, "[name='value.cleanup.policy']")
    browser.write("compact")
    tab_to(browser, "[name=reset][value='max.message.bytes']")
    browser.press("Space")
    browser.press_to_load("Enter")
    change = {row[0]: row[1:] for row in read_rows(browser, "Change")}
    assert change["cleanup.policy"] == ["delete", "compact"]
    assert change["max.message.bytes"] == ["7777", "1048588 default"] and len(change) == 2
    check_opened_page(browser, "config-preview")
    assert "cleanup.policy=compact" not in odradek("topic", "describe", topic).out
    tab_to(browser, "button[value=apply]")
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('[role=status]').innerText") == "The configuration was changed."
    wait_until(
        lambda: odradek("topic", "describe", topic, "--json").json[0]["configs"] == {"cleanup.policy": "compact"}
    )


def test_a_topic_is_created_and_deleted_by_keyboard(browser, console, odradek, unique):
    browser.resize(1200, 800)
    browser.open(f"{console.url}/topics")
    tab_to(browser, "a[href='/new-topic']")
    browser.press_to_load("Enter")
    tab_to(browser, "[name=configs]")
    browser.write("retention.ms=1000")
    browser.press("Enter")
    browser.send("Input.insertText", text="cleanup.policy=compact")
    tab_to(browser, "[name=name]", is_back=True)
    browser.write(unique)
    browser.press_to_load("Enter")
    check_opened_page(browser, "topic-new-checked")
    # The lines of the configuration pass a hidden field.
    tab_to(browser, "button[value=apply]")
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('[role=status]').innerText") == "The topic was created."
    wait_until(lambda: unique in odradek("topic", "list").out)
    configs = odradek("topic", "describe", unique, "--json").json[0]["configs"]
    assert configs == {"retention.ms": "1000", "cleanup.policy": "compact"}
    browser.open(f"{console.url}/topics/{unique}/delete")
    tab_to(browser, "[name=confirmed]")
    browser.write(unique)
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('[role=status]').innerText") == "The topic was deleted."
    check_opened_page(browser, "topic-deleted")
    wait_until(lambda: unique not in odradek("topic", "list").out)


def test_states_of_pipelines(browser, start_console, broker, topic, unique, tmp_path):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(5):
        producer.produce(topic, b"x", partition=0)
    producer.flush()
    names = [f"{unique}-{kind}" for kind in ("copy", "fresh")]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": names[0]})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    for name in names:
        text = PIPELINE.format(name=name, servers=broker.bootstrap_servers, topic=topic)
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "wrong.toml").write_text("nam = 1")
    pipeline = load(tmp_path / f"{names[0]}.toml", {})
    write_lock(pipeline.state_folder, make_lock(pipeline, None, 1))
    counts = Progress(3, 0, 1_100_000, 1_099_990, 9, 1, 51234.5, "<b>sink is down</b> at " + "x" * 200, 1_000_000)
    write_progress(pipeline.state_folder, counts)
    console = start_console(broker.bootstrap_servers, pipelines=(tmp_path,))
    browser.resize(1200, 800)
    wait_until(lambda: "2" in console.get("/pipelines").find_row(names[0])[3])
    check_page(browser, f"{console.url}/pipelines", "pipelines")
    rows = {row[0].split("\n")[0]: row for row in read_rows(browser, "Pipelines")}
    assert rows[names[0]][1] == "stopped" and rows[names[0]][4] == "1,100,000"
    assert rows[names[1]][1] == "has never run" and rows["wrong"][1] == "cannot be read"
    assert "unknown key nam" in rows["wrong"][2]
    assert "<b>sink is down</b>" in browser.run("document.querySelector('main').innerText")
    tab_to(browser, "tbody th a")
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('h1').innerText") == names[0]
    assert browser.messages == []
