"""ACLs, users, quotas, transactions and readers in the console, on a broker with an authorizer."""

from contextlib import ExitStack
from html import unescape

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests import processes
from compat_tests import transaction_frames as frames
from compat_tests.backends import BROKERS
from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions, wait_until
from compat_tests.conftest import SHARED_PROPERTIES
from compat_tests.tools.console.page_checks import check_opened_page, check_page, read_rows, tab_to
from compat_tests.tools.eventually import eventually
from compat_tests.tools.test_security import AUTHORIZERS
from odradek.tools.console.formats import NOTHING

pytestmark = [pytest.mark.side_by_side]

CLIENT = load("confluent")


@pytest.fixture(scope="module")
def broker(backend, request):
    """A broker without verification and expiration of transactions, for which every client is a super user."""
    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    properties = {
        "authorizer.class.name": AUTHORIZERS[backend],
        "super.users": "User:ANONYMOUS",
        "transaction.partition.verification.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    }
    if backend == "odradek":
        properties["metrics.listener"] = f"127.0.0.1:{processes.lasting_port()}"
    with BROKERS[backend]({**SHARED_PROPERTIES, **properties}) as started:
        yield started


def test_acls_users_and_quotas(console, odradek, tmp_path):
    password = tmp_path / "password"
    password.write_text("secret")
    odradek("acl", "create", "--deny-principal", "User:<b>", "--operation", "Read", "--topic", "orders")
    odradek("user", "create", "alice", "--password-file", str(password))
    odradek("quota", "alter", "--user", "alice", "--set", "producer_byte_rate=1048576")

    def check():
        acls = console.get("/acls")
        assert acls.find_row("Topic orders") == ["Topic orders", "User:&lt;b&gt;", "*", "Read", "Deny"]
        assert "SCRAM-SHA-512, 4,096 iterations" in console.get("/users").find_row("alice")[1]
        assert console.get("/quotas").find_row("user alice")[1] == "producer_byte_rate = 1,048,576"

    eventually(check)


def test_access_rules_that_come_and_go_in_a_browser(browser, console, odradek, unique, tmp_path):
    """The console only shows access rules; its pages follow the changes of other clients."""
    password = tmp_path / "password"
    password.write_text("secret")
    principal = f"User:{unique}"
    rule = (
        "--deny-principal",
        principal,
        "--operation",
        "Read",
        "--topic",
        f"{unique}-",
        "--resource-pattern-type",
        "prefixed",
    )
    pages = {"acls": "ACLs", "users": "Users", "quotas": "Quotas"}

    def await_count(page, count):
        def check():
            # A change empties the cache.
            console.served.change(lambda cluster: None)
            rows = console.get(f"/{page}?search={unique}").rows
            assert sum(unique in row[0] and len(row) > 1 for row in rows) == count

        eventually(check)

    odradek("acl", "create", *rule)
    odradek("user", "create", unique, "--mechanism", "SCRAM-SHA-512", "--password-file", str(password))
    odradek(
        "quota", "alter", "--user", unique, "--set", "producer_byte_rate=1048576", "--set", "request_percentage=12.5"
    )
    for page, label in pages.items():
        await_count(page, 1)
        check_page(browser, f"{console.url}/{page}", page)
        browser.press("/")
        browser.write(unique)
        browser.press_to_load("Enter")
        [row] = read_rows(browser, label)
        expected = {
            "acls": [f"Topic {unique}- prefix", principal, "*", "Read", "Deny"],
            "users": [unique, "SCRAM-SHA-512, 4,096 iterations"],
            "quotas": [f"user {unique}", "producer_byte_rate = 1,048,576\nrequest_percentage = 12.5"],
        }
        assert row == expected[page]
        # Escape empties the field, and the link of a column reverses the order.
        browser.press("/")
        browser.press("Escape")
        assert browser.run("document.activeElement.value") == ""
        tab_to(browser, "thead th[aria-sort] a")
        browser.press_to_load("Enter")
        assert browser.run("document.querySelector('th[aria-sort]').ariaSort") == "descending"
        check_opened_page(browser, f"{page}-found")
    odradek("acl", "delete", "--topic", f"{unique}-", "--resource-pattern-type", "prefixed", "--yes")
    odradek("user", "delete", unique, "--yes")
    odradek("quota", "alter", "--user", unique, "--delete", "producer_byte_rate", "--delete", "request_percentage")
    for page in pages:
        await_count(page, 0)
        check_page(browser, f"{console.url}/{page}?search={unique}", f"{page}-none")


def test_transactions(console, broker, admin, unique):
    admin.create_topic(unique, 1)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=unique)) as producer:
        producer.begin()
        producer.produce(unique, [Message(b"x")])
        row = console.get(f"/transactions?search={unique}").find_row(unique)
        assert (row[1], row[4]) == ("Ongoing", "1")
        producer.abort()
    stored = console.get(f"/topics/__transaction_state/records?filter={unique}").rows[1:]
    assert all(unescape(row[2]) == f'{{"transactional_id": "{unique}"}}' for row in stored)
    assert any('"transaction_status_name": "Ongoing"' in unescape(row[3]) for row in stored)


def test_only_open_transactions_are_longer_than_their_timeout(console, broker, admin, unique):
    admin.create_topic(unique, 1)
    names = ("committed", "aborted", "expired")
    with ExitStack() as stack:
        producers = {}
        for name in names:
            options = ProducerOptions(transactional_id=f"{unique}-{name}", transaction_timeout_ms=3000)
            producers[name] = stack.enter_context(CLIENT.Producer(broker.bootstrap_servers, options))
            producers[name].begin()
            producers[name].produce(unique, [Message(b"x")])
        producers["committed"].commit()
        producers["aborted"].abort()

        def check():
            rows = {name: console.get(f"/transactions?search={unique}").find_row(f"{unique}-{name}") for name in names}
            assert rows["expired"][1] == "Ongoing longer than its timeout" and rows["expired"][2].endswith(" s")
            assert [rows[name][1:3] for name in names[:2]] == [["CompleteCommit", NOTHING], ["CompleteAbort", NOTHING]]

        eventually(check)
        producers["expired"].abort()


def test_a_hanging_transaction(console, broker, admin, unique):
    admin.create_topic(unique, 1)
    [late] = frames.leave_hanging(broker.port, unique, unique)
    assert "There are none" in console.get(f"/transactions/hanging?topic={unique}").text
    wait_until(lambda: len(console.get(f"/transactions/hanging?topic={unique}&age=0").rows) > 1)
    row = console.get("/transactions/hanging?age=0").find_row(unique)
    assert row[1:4] == ["0", "0", str(late.producer_id)]


def test_open_and_hanging_transactions_in_a_browser(browser, console, broker, admin, unique):
    admin.create_topic(unique, 1)
    [late] = frames.leave_hanging(broker.port, unique, unique)
    options = ProducerOptions(transactional_id=f"{unique}-open", transaction_timeout_ms=3000)
    with CLIENT.Producer(broker.bootstrap_servers, options) as producer:
        producer.begin()
        producer.produce(unique, [Message(b"x")])
        url = f"{console.url}/transactions?search={unique}"
        wait_until(lambda: "longer than its timeout" in console.get(f"/transactions?search={unique}").text)
        check_page(browser, url, "transactions")
        states = {row[0]: row[1] for row in read_rows(browser, "Transactions")}
        assert states == {unique: "Empty", f"{unique}-open": "Ongoing longer than its timeout"}
        producer.abort()
    tab_to(browser, "a[href='/transactions/hanging']")
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('nav [aria-current]').innerText") == "Transactions"
    check_opened_page(browser, "hanging-none")
    tab_to(browser, "[name=topic]")
    browser.write(unique)
    tab_to(browser, "[name=age]")
    browser.write("0")
    browser.press_to_load("Enter")
    [row] = read_rows(browser, "Hanging transactions")
    assert row[:4] == [unique, "0", "0", str(late.producer_id)]
    assert row[5] == f"odradek transaction abort {unique} 0 --start-offset 0"
    check_opened_page(browser, "hanging")
    tab_to(browser, "td a")
    browser.press_to_load("Enter")
    assert browser.run("document.querySelector('.crumbs a:last-child').innerText") == unique


def test_readers(console, broker, backend, admin, unique):
    if backend == "kafka":
        assert "report readers: broker 1 has no metrics.listener" in console.get("/readers").text
        return
    admin.create_topic(unique, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(10):
        producer.produce(unique, str(index))
    producer.flush()
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "no-commits", "group.id": "unused"})
    reader.assign([TopicPartition(unique, 0, 4)])
    try:
        assert wait_until(lambda: reader.consume(1, 1))

        def check():
            row = console.get(f"/readers?search={unique}").find_row("no-commits")
            assert row[1:3] == [unique, "0"] and int(row[3]) + int(row[4]) == 10

        eventually(check)
    finally:
        reader.close()


def test_committed_records(console, broker, admin, unique):
    admin.create_topic(unique, 1)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=unique)) as producer:
        for value, end in (
            (b"aborted", producer.abort),
            (b"committed", producer.commit),
            (b"aborted 2", producer.abort),
        ):
            producer.begin()
            producer.produce(unique, [Message(value), Message(value)])
            end()
        producer.begin()
        producer.produce(unique, [Message(b"open")])
        path = f"/topics/{unique}/records"
        newest = [row[3] for row in console.get(path).rows[1:]]
        assert len(newest) == 7 and "open" in newest[0]
        for position in ("newest", "oldest", "offset&at=1"):
            rows = console.get(f"{path}?committed=1&position={position}").rows[1:]
            assert [(row[0], row[3].split()[0]) for row in rows] == [("0:4", "committed"), ("0:3", "committed")]
        producer.abort()
