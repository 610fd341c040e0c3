"""Small parts: hashes, deadlines, subscriptions of the consumer protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.groups.classic import group as group_module
from odradek.coordinator.groups.classic.consumer_protocol import subscribed_topics
from odradek.coordinator.groups.classic.group import Group
from odradek.coordinator.groups.classic.member import Member
from odradek.coordinator.partitioning import java_string_hash, partition_for, utf16_length
from odradek.coordinator.result import CoordinatorResult
from odradek.coordinator.tests.driver import subscription
from odradek.coordinator.timers import Action, DeadlineHeap
from odradek.protocol.messages.join_group import JoinGroupRequestProtocol

# text, String.hashCode, Utils.abs(hashCode) % 50: from Java
HASHES = [
    ("", 0, 0),
    ("a", 97, 47),
    ("group", 98629247, 47),
    ("my-consumer-group", 1513705513, 13),
    ("grüppe", -1233264812, 12),
    ("😀group", -1231696132, 32),
    ("polygenelubricants", -2147483648, 0),
    ("connect-cluster-1", 1190215675, 25),
]


@pytest.mark.parametrize(("text", "hashed", "partition"), HASHES)
def test_hash_is_that_of_java(text, hashed, partition):
    assert java_string_hash(text) == hashed
    assert partition_for(text, 50) == partition


def test_length_is_that_of_java():
    assert [utf16_length(text) for text in ("", "abc", "é", "😀")] == [0, 3, 1, 2]


def test_subscription_of_any_version_gives_its_topics():
    assert subscribed_topics(subscription(["a", "topic-b"], b"data")) == ["a", "topic-b"]
    assert subscribed_topics(b"\x00\x00" + subscription(["x"])[2:]) == ["x"]
    assert subscribed_topics(b"\x00\x63\x00\x00\x00\x00\xff\xff\xff\xffanything newer") == []


@pytest.mark.parametrize("cut", range(len(subscription(["topic"], b"data")) - 4))
def test_cut_subscription_is_refused(cut):
    with pytest.raises(ValueError):
        subscribed_topics(subscription(["topic"], b"data")[:cut])


@pytest.mark.parametrize(
    "data",
    [b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1\xff\xff", b"\0\1\0\0\0\1\0\1\xff\xff\xff\xff\xff"],
)
def test_wrong_subscription_is_refused(data):
    with pytest.raises(ValueError):
        subscribed_topics(data)


def member(member_id: str, *metadata: bytes) -> Member:
    protocols = [JoinGroupRequestProtocol(name=f"p{n}", metadata=item) for n, item in enumerate(metadata)]
    return Member(
        member_id=member_id, group_instance_id=None, client_id="c", client_host="/h", rebalance_timeout_ms=1,
        session_timeout_ms=1, protocol_type="consumer", protocols=protocols,
    )  # fmt: skip


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The subscriptions that a group decodes."""
    found: list[bytes] = []

    def record(data: bytes) -> list[str]:
        found.append(data)
        return subscribed_topics(data)

    monkeypatch.setattr(group_module, "subscribed_topics", record)
    return found


def test_a_subscription_is_read_once_however_many_members_send_it(reads: list[bytes]):
    group = Group("g", protocol_name="p0")
    for number in range(5):
        group.add(member(f"m{number}", subscription(["a", "b"])))
    for known in group.members.values():
        group.set_protocols(known, member("", subscription(["a", "b"])).protocols)
    assert len(reads) == 1
    group.add(member("other", subscription(["b", "c"])))
    assert len(reads) == 2
    reads.clear()
    assert group.compute_subscribed_topics() == frozenset({"a", "b", "c"})
    assert reads == [], "nothing is left to decode at the end of a join phase"


def test_the_topics_of_a_group_follow_its_members(reads: list[bytes]):
    group = Group("g", protocol_name="p1")
    group.add(member("m", subscription(["other"]), subscription(["a"], b"user data")))
    group.add(member("n", subscription(["other"]), subscription(["a"], b"other user data")))
    assert group.compute_subscribed_topics() == frozenset({"a"})
    group.set_protocols(group.members["n"], member("", b"", subscription(["b"])).protocols)
    assert group.compute_subscribed_topics() == frozenset({"a", "b"})
    group.set_protocols(group.members["m"], member("", b"", b"not readable").protocols)
    assert group.compute_subscribed_topics() is None
    group.remove("m")
    assert group.compute_subscribed_topics() == frozenset({"b"})
    group.remove("n")
    assert group.compute_subscribed_topics() == frozenset()
    assert group._subscriptions == {}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
            st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("pop"), st.just(0), st.integers(0, 50)),
        ),
        max_size=60,
    )
)
def test_deadlines_fire_in_the_order_of_a_plain_table(steps):
    heap, table, order = DeadlineHeap(lambda: 0), {}, 0
    fired: list[int] = []

    def action_of(order: int) -> Action:
        return lambda result, now_ms: fired.append(order)

    for step, key, number in steps:
        if step == "set":
            order += 1
            table[key,] = (number, order)
            heap.schedule((key,), number, action_of(order))
        elif step == "cancel":
            table.pop((key,), None)
            heap.cancel((key,))
        else:
            due = sorted((value, key) for key, value in table.items() if value[0] <= number)
            action = heap.pop_due(number)
            if due:
                assert action is not None
                action(CoordinatorResult(), 0)
                assert fired.pop() == due[0][0][1]
                del table[due[0][1]]
            else:
                assert action is None
        assert heap.next_deadline_ms() == min((value[0] for value in table.values()), default=None)
        assert len(heap) == len(table)


def test_heartbeats_do_not_make_the_heap_grow():
    heap = DeadlineHeap(lambda: monotonic_ms)
    for monotonic_ms in range(10_000):
        heap.schedule(("member",), 10, lambda result, now_ms: None)
        heap.cancel(("sync",))
        heap.schedule(("sync",), 5, lambda result, now_ms: None)
        heap.pop_due(monotonic_ms)
    assert len(heap._heap) <= 4
