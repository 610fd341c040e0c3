"""Groups in headless Chromium, by keyboard: members and their assignments, the lag over time, a reset."""

from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.clients.common import wait_until
from compat_tests.tools.console.page_checks import check_opened_page, check_page, read_rows, tab_to
from odradek.tools.console.assignments import format_ranges
from odradek.tools.console.pages.groups import sample_lag

pytestmark = [pytest.mark.side_by_side]

PARTITIONS = 6
MINUTE_MS = 60_000


@pytest.fixture
def group_topic(broker, admin, unique):
    """A topic with 10 records in each of 6 partitions."""
    admin.create_topic(unique, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(10 * PARTITIONS):
        producer.produce(unique, str(index), partition=index % PARTITIONS)
    producer.flush()
    return unique


@pytest.fixture
def members(broker, group_topic):
    """Start two members with the same client id in a group with the name of the topic; return those to close."""
    with ExitStack() as stack:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group_topic,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumers = [Consumer(settings) for _ in range(2)]
        for consumer in consumers:
            stack.callback(consumer.close)
            consumer.subscribe([group_topic])
        wait_until(
            lambda: (
                [consumer.poll(0.05) for consumer in consumers]
                and [len(consumer.assignment()) for consumer in consumers] == [PARTITIONS // 2] * 2
            )
        )
        yield consumers


def test_members_lag_over_time_and_a_reset_by_keyboard(browser, console, odradek, group_topic, members):
    for consumer in members:
        offsets = [TopicPartition(group_topic, one.partition, 4) for one in consumer.assignment()]
        consumer.commit(offsets=offsets, asynchronous=False)
    now_ms = console.served.now_ms()
    for minutes in (*range(180, 90, -1), *range(60, 0, -1)):
        lag = 2_400 if minutes == 60 else 10 * minutes
        console.served.lag_history.add(now_ms - minutes * MINUTE_MS, {group_topic: lag})
    sample_lag(console.served)

    browser.resize(1200, 800)
    browser.open(f"{console.url}/groups?search={group_topic}")
    check_opened_page(browser, "groups")
    tab_to(browser, "tbody th a")
    browser.press_to_load("Enter")
    check_opened_page(browser, "group")
    # Two members with the same client id differ by their assignments, and by their ids beside the partitions.
    shown = read_rows(browser, "Members")
    assert [row[0] for row in shown] == ["reader", "reader"]
    halves = [format_ranges(range(start, start + PARTITIONS // 2)) for start in (0, PARTITIONS // 2)]
    ids = {row[-1].removeprefix(f"{group_topic}: "): row[2] for row in shown}
    assert sorted(ids) == halves and len(set(ids.values())) == 2
    owners = [row[-1] for row in read_rows(browser, "Partitions")]
    assert owners == [f"reader\n{ids[half]}" for half in halves for _ in range(PARTITIONS // 2)]
    assert browser.run("document.querySelector('.facts').innerText").endswith("lag 36")
    described = browser.run("document.querySelector('.chart svg').getAttribute('aria-label')")
    assert "Lag from 1,800 at" in described and "to 36 at" in described and "at most 2,400" in described
    assert browser.run("[...document.querySelectorAll('.chart .scale span')].map(one => one.innerText)") == [
        "3,000",
        "1,500",
        "0",
    ]
    # The line is inside of the picture, and the labels are at its left.
    edges = "(one => document.querySelector(one).getBoundingClientRect())(%r).toJSON()"
    line, picture, scale = (browser.run(edges % name) for name in (".chart .line", ".chart svg", ".chart .scale"))
    assert scale["right"] <= picture["left"] <= line["left"] + 1
    assert picture["top"] <= line["top"] and line["bottom"] <= picture["bottom"]
    tab_to(browser, ".chart summary")
    browser.press("Enter")
    samples = read_rows(browser, "Samples of the lag")
    assert (len(samples), samples[0][1], samples[-1][1]) == (20, "36", "1,800")
    check_opened_page(browser, "group-samples")

    tab_to(browser, "a.button", is_back=True)
    browser.press_to_load("Enter")
    assert "The group has 2 members" in browser.run("document.querySelector('main').innerText")
    for consumer in members:
        consumer.close()
    wait_until(lambda: "Empty" in odradek("group", "describe", group_topic).out)
    browser.open(f"{console.url}/group/reset?name={group_topic}")
    check_opened_page(browser, "group-reset")
    tab_to(browser, "[name=target]")
    for _ in range(3):
        browser.press("ArrowDown")
    assert browser.run("document.activeElement.value") == "offset"
    tab_to(browser, "[name=at]")
    browser.write("7")
    browser.press_to_load("Enter")
    assert [row[3:] for row in read_rows(browser, "Preview")] == [["7", "0", "10", "3"]] * PARTITIONS
    check_opened_page(browser, "group-reset-preview")
    tab_to(browser, "button[value=apply]")
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('[role=status]').innerText") == "The offsets were set."
    assert [row[2:5] for row in read_rows(browser, "Partitions")] == [["7", "10", "3"]] * PARTITIONS
    check_opened_page(browser, "group-after-reset")
    assert {row["lag"] for row in odradek("group", "lag", group_topic, "--json").json} == {3 * PARTITIONS}


def test_an_empty_group_and_one_that_does_not_exist(browser, console, unique):
    check_page(browser, f"{console.url}/groups?search={unique}", "groups-none")
    browser.open(f"{console.url}/group?name={unique}")
    assert "does not exist" in browser.run("document.querySelector('[role=alert]').innerText")
