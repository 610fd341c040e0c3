"""The console in headless Chromium."""

import json
import re

import pytest
from confluent_kafka import Producer

from compat_tests.clients.common import wait_until
from compat_tests.tools.console.page_checks import check_opened_page, check_page

pytestmark = [pytest.mark.side_by_side]

SCRIPT = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


def test_record_contents_are_text_and_the_tail_follows(browser, console, broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, SCRIPT, SCRIPT)
    producer.flush()
    browser.resize(390, 844, is_dark=True)
    browser.open(f"{console.url}/topics/{topic}/records")
    assert browser.run("document.querySelector('td.key').textContent") == SCRIPT
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.run("document.querySelector('summary').click()")
    assert browser.run("document.querySelector('details pre').textContent") == SCRIPT
    browser.submit("document.querySelector('td a').click()")
    assert browser.run("document.querySelectorAll('main img, main script').length") == 0

    browser.open(f"{console.url}/topics/{topic}/tail")
    producer.produce(topic, SCRIPT, "second")
    producer.flush()
    wait_until(lambda: browser.run("document.querySelectorAll('#tail tr').length") == 1)
    assert browser.run("document.querySelector('#tail td.key').textContent") == "second"
    assert browser.run("document.title").startswith("Live tail")
    assert browser.messages == []


def test_the_console_is_usable_by_keyboard(browser, console, topic):
    browser.resize(1200, 800)
    browser.open(f"{console.url}/topics")

    def press(key, text=""):
        for kind in ("keyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "")

    browser.send("Input.dispatchKeyEvent", type="rawKeyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().left >= 0")
    press("/", "/")
    assert browser.run("document.activeElement.name") == "search"
    browser.send("Input.insertText", text=topic)
    browser.submit("document.activeElement.form.requestSubmit()")
    assert browser.run("document.querySelector('tbody th a').textContent") == topic
    assert browser.messages == []


def test_a_change_after_a_login(browser, start_console, broker, odradek, topic):
    console = start_console(broker.bootstrap_servers, allows_changes=True, password="secret")
    browser.open(f"{console.url}/topics/{topic}/config")
    # The browser sets the focus after the load.
    wait_until(lambda: browser.run("document.activeElement.name") == "password")
    browser.submit("document.activeElement.value = 'secret'; document.activeElement.form.requestSubmit()")
    assert browser.run("location.pathname") == f"/topics/{topic}/config"
    browser.submit("document.getElementById('value.retention.ms').value = '1234'; document.forms[1].requestSubmit()")
    assert browser.run("document.querySelector('tbody tr').innerText").split()[-1] == "1234"
    browser.submit("document.querySelector('button[value=apply]').click()")
    assert browser.run("document.querySelector('[role=status]').textContent") == "The configuration was changed."
    wait_until(lambda: "retention.ms=1234" in odradek("topic", "describe", topic).out)
    browser.submit("document.querySelector('.logout button').click()")
    browser.open(f"{console.url}/topics")
    assert browser.run("location.pathname") == "/login"
    assert browser.messages == []


def test_short_keys_and_long_values_of_records(browser, console, broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, "x" * 1000, "a-key-of-a-row")
    producer.flush()
    browser.resize(1200, 800)
    browser.open(f"{console.url}/topics/{topic}/records")
    # The text of a value begins beside the mark that opens it.
    browser.run("(window.range = document.createRange()).selectNodeContents(document.querySelector('summary')), 0")
    tops = [f"{one}.getClientRects()[0].top" for one in ("range", "document.querySelector('summary')")]
    assert browser.run(" - ".join(tops)) < 10
    assert browser.run("document.querySelector('td.key').scrollWidth") > 140


def test_pages_fit_their_windows(browser, console, broker, start_console, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, json.dumps({"id": 1, "text": "x" * 500}), "a key", headers={"trace": b"abc"})
    producer.flush()
    [number] = re.findall(r'href="/brokers/(\d+)"', console.get("/").text)[:1]
    paths = {
        "overview": "/",
        "broker": f"/brokers/{number}",
        "topics": "/topics",
        "topic-new": "/new-topic",
        "produce": f"/topics/{topic}/produce",
        "delete": f"/topics/{topic}/delete",
        "records": f"/topics/{topic}/records",
        "record": f"/topics/{topic}/records/0/0",
        "tail": f"/topics/{topic}/tail",
        "readers": "/readers",
    }
    for name, path in paths.items():
        # Readers of a broker without metrics are a page with an error status, which the browser reports.
        browser.open(console.url + path)
        browser.messages.clear()
        check_opened_page(browser, name)
        part = {"overview": "Overview", "broker": "Overview", "readers": "Readers"}.get(name, "Topics")
        assert browser.run("document.querySelector('nav [aria-current]')?.innerText") == part, name
    check_page(browser, f"{start_console('127.0.0.1:1', password='secret').url}/login", "login")
    browser.open(f"{start_console('127.0.0.1:1').url}/topics")
    browser.messages.clear()
    check_opened_page(browser, "unreachable")

    browser.resize(360, 740)
    # The link of the current page is in the window, although the navigation is wider.
    browser.open(f"{console.url}/users")
    place = browser.run("document.querySelector('nav [aria-current]').getBoundingClientRect().toJSON()")
    assert place["left"] >= 0 and place["right"] <= 360
    # Values are below the names of configurations, and numbers of brokers are not as wide as names.
    browser.open(f"{console.url}/topics/{topic}/config")
    assert browser.run("document.querySelector('td input').getBoundingClientRect().left") < 200
    browser.open(f"{console.url}/")
    assert browser.run("document.querySelector('tbody th').offsetWidth") < 80
    assert browser.messages == []


def test_a_page_of_another_site_cannot_use_the_console(browser, console):
    browser.open(f"data:text/html,<form method=post action='{console.url}/logout'></form>")
    fetched = f"fetch('{console.url}/topics', {{mode: 'no-cors'}}).then(() => 'answered', () => 'refused')"
    assert browser.run(fetched) == "refused"
    browser.submit("document.forms[0].submit()")
    assert browser.run("document.querySelector('h1').textContent") == "Cross-site request"
