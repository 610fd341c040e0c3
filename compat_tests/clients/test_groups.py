"""Consumer groups through each client library: members are processes that join, leave, crash and return."""

from typing import Any

import pytest

from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, read, wait_until
from compat_tests.clients.member import Member

PARTITIONS = 6
SESSION_TIMEOUT_MS = 10_000
"""Shorter than the wait for the end of a crashed member, and longer than the longest pause of a busy machine: the group
would rebalance once more."""


def all_partitions(topic: str) -> frozenset[tuple[str, int]]:
    return frozenset((topic, p) for p in range(PARTITIONS))


def settled(topic: str, members: list[Member]) -> bool:
    """Return whether the members own every partition once, in shares of the same size."""
    held = [m.assignment for m in members]
    even = all(len(h) == PARTITIONS // len(members) for h in held)
    return even and frozenset().union(*held) == all_partitions(topic)


def wait_settled(admin: Any, topic: str, *members: Member) -> None:
    """Wait until each member has its share and none is about to rejoin, which is possible although each has it."""
    wait_until(
        lambda: settled(topic, list(members)) and admin.describe_group(topic).state == "Stable",
        60,
        lambda: [admin.describe_group(topic), *((m.name, m.events) for m in members)],
    )


@pytest.fixture
def group_topic(unique: str, admin: Any) -> str:
    admin.create_topic(unique, PARTITIONS)
    return unique


@pytest.fixture
def join(broker: Any, library: str, group_topic: str) -> Any:
    """Start a member of the group with the topic's name."""
    members: list[Member] = []

    def join(name: str, **options: Any) -> Member:
        settings = {
            "group": group_topic,
            "client_id": name,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            **options,
        }
        members.append(Member(library, broker.bootstrap_servers, group_topic, settings))
        return members[-1]

    yield join
    for member in members:
        member.crash()


def join_leave_and_crash(join: Any, admin: Any, topic: str, assignor: str) -> list[Member]:
    first = join("first", assignor=assignor)
    first.wait_for_assignment(PARTITIONS)
    second, third = join("second", assignor=assignor), join("third", assignor=assignor)
    wait_settled(admin, topic, first, second, third)
    assert sorted(m.client_id for m in admin.describe_group(topic).members) == ["first", "second", "third"]
    third.leave()
    wait_settled(admin, topic, first, second)
    second.crash()
    wait_settled(admin, topic, first)
    assert len(admin.describe_group(topic).members) == 1
    return [first, second, third]


@pytest.mark.side_by_side
def test_three_members_join_leave_and_crash_with_range(join, admin, group_topic):
    first, *_ = join_leave_and_crash(join, admin, group_topic, "range")
    first.leave()
    wait_until(lambda: admin.describe_group(group_topic).state == "Empty", what="the group is empty")


@pytest.mark.needs("cooperative")
def test_three_members_join_leave_and_crash_with_cooperative_assignor(join, admin, group_topic):
    """No member gives up a partition that it keeps."""
    first, *_ = join_leave_and_crash(join, admin, group_topic, "cooperative")
    revoked = [partitions for what, partitions in first.changes if what == "revoked"]
    assert sum(map(len, revoked)) == len(frozenset().union(*revoked)) == PARTITIONS - PARTITIONS // 3
    assert admin.describe_group(group_topic).protocol == "cooperative-sticky"


@pytest.mark.needs("static")
def test_a_static_member_gets_its_partitions_back_without_a_rebalance(join, admin, group_topic):
    options = {"session_timeout_ms": 20_000}
    members = [join(f"m{n}", instance_id=f"static-{n}", **options) for n in range(3)]
    wait_settled(admin, group_topic, *members)
    before = [len(m.changes) for m in members[:2]]
    held = members[2].assignment
    members[2].crash()
    again = join("m2-again", instance_id="static-2", **options)
    assert again.wait_for_assignment(2) == held
    assert [len(m.changes) for m in members[:2]] == before
    assert admin.describe_group(group_topic).state == "Stable"
    ids = {m.instance_id for m in admin.describe_group(group_topic).members}
    assert ids == {"static-0", "static-1", "static-2"}


def test_a_group_shares_the_records_and_continues_where_it_stopped(broker, client, admin, join, group_topic):
    """Records committed by former members are not read again; no record is missed."""
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:

        def produce(numbers: range) -> None:
            producer.produce(group_topic, [Message(b"%d" % n, partition=n % PARTITIONS) for n in numbers])

        produce(range(60))
        members = [join("a"), join("b")]
        wait_settled(admin, group_topic, *members)
        wait_until(lambda: {int(v) for m in members for v in m.values} == set(range(60)))
        for member in members:
            member.leave()
        produce(range(60, 120))
        later = join("c")
        wait_until(lambda: len(later.values) >= 60)
        assert sorted(map(int, later.values)) == list(range(60, 120))


def test_members_continue_after_a_broker_restart(start_broker, library, client, unique):
    """Generation and commits are restored from disk: members keep their partitions and miss no record."""
    broker = start_broker()
    with client.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(unique, PARTITIONS)
    options = {"group": unique, "session_timeout_ms": 20_000}
    servers = broker.bootstrap_servers
    with (
        Member(library, servers, unique, {**options, "client_id": "a"}) as a,
        Member(library, servers, unique, {**options, "client_id": "b"}) as b,
    ):
        with client.Admin(servers) as admin:
            wait_settled(admin, unique, a, b)
        with client.Producer(servers, ProducerOptions()) as producer:
            producer.produce(unique, [Message(b"%d" % n, partition=n % PARTITIONS) for n in range(60)])
        wait_until(lambda: len(a.values) + len(b.values) >= 60)
        broker.restart(clean=True)
        with client.Producer(servers, ProducerOptions()) as producer:
            producer.produce(unique, [Message(b"%d" % n, partition=n % PARTITIONS) for n in range(60, 120)])
        wait_until(lambda: {int(v) for v in a.values + b.values} == set(range(120)), 90)
        with client.Admin(servers) as admin:
            wait_settled(admin, unique, a, b)


def test_commits_with_metadata_by_a_consumer_without_membership(broker, client, topic, unique):
    """A group that only commits: assign, commit, and fetch the commit; an unknown group has none."""
    options = ConsumerOptions(group=f"{unique}-simple")
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(topic, [Message(b"%d" % n) for n in range(10)])
    with client.Consumer(broker.bootstrap_servers, options) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.committed((topic, 0)) is None
        read(consumer, 10)
        consumer.commit({(topic, 0): (7, "up to seven")})
    with client.Consumer(broker.bootstrap_servers, options) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.committed((topic, 0)) == 7
