"""Responses of transaction coordinators, to valid and invalid requests: the same of Odradek and of Apache Kafka."""

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.bad_frames import Connection
from compat_tests.plain_requests import ask_for_coordinator, join, sync
from compat_tests.plain_requests import commit as commit_plainly
from compat_tests.transaction_frames import (
    Code,
    Initialized,
    Producer,
    add_batched,
    add_offsets,
    add_partitions,
    await_coordinator,
    await_state,
    await_topic,
    commit_offset,
    committed,
    describe,
    end,
    finish,
    init,
    list_transactions,
    produce,
    records_of,
    retry_until_ready,
    start,
    write,
    write_markers,
)

pytestmark = pytest.mark.side_by_side

TOPIC = "transactions-coordinator"
HERE, THERE = (TOPIC, 0), (TOPIC, 1)
NO_ONE = (-1, -1)

WRITTEN_MS = 2000
"""The timeout of a transaction that ends by it: longer than a busy machine takes to write a record."""

_numbers = itertools.count()


def refused(code: Code) -> Initialized:
    return Initialized(code, *NO_ONE)


@pytest.fixture(scope="module")
def topic(broker: Any) -> str:
    from compat_tests.clients import load

    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 2)
    with Connection(broker.port) as connection:
        await_topic(connection, TOPIC, 2)
        await_coordinator(connection)
        ask_for_coordinator(connection)
    return TOPIC


@pytest.fixture
def connection(broker: Any, topic: str) -> Iterator[Connection]:
    with Connection(broker.port) as made:
        yield made


@pytest.fixture
def name() -> str:
    """A transactional id for one test."""
    return f"coordinator-{next(_numbers)}-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def group(name: str) -> str:
    return f"group-of-{name}"


# InitProducerId.


@pytest.mark.parametrize("version", range(6))
def test_init_returns_a_producer_id_and_bumps_its_epoch(connection, name, version):
    first = start(connection, name, version=version)
    assert first.epoch == 0
    assert init(connection, name, version=version) == Initialized(Code.NONE, first.producer_id, 1)
    assert init(connection, name, version=version) == Initialized(Code.NONE, first.producer_id, 2)
    response = describe(connection, name)
    state = (response.transaction_state, response.producer_id, response.producer_epoch)
    assert state == ("Empty", first.producer_id, 2)
    assert (response.transaction_timeout_ms, response.transaction_start_time_ms, response.topics) == (60_000, -1, [])


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 900_001, 2**31 - 1])
def test_init_with_a_timeout_that_is_not_allowed(connection, name, timeout_ms):
    assert init(connection, name, timeout_ms=timeout_ms) == refused(Code.INVALID_TRANSACTION_TIMEOUT)


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_init_with_the_least_and_the_longest_timeout(connection, name, timeout_ms):
    assert start(connection, name, timeout_ms=timeout_ms).epoch == 0


@pytest.mark.parametrize("version", range(6))
def test_init_with_an_empty_id(connection, version):
    assert init(connection, "", version=version) == refused(Code.INVALID_REQUEST)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("producer", [(5, -1), (-1, 5), (-1, 0), (0, -1)])
def test_init_with_half_a_producer(connection, name, version, producer):
    assert init(connection, name, producer=producer, version=version) == refused(Code.INVALID_REQUEST)
    assert init(connection, None, producer=producer, version=version) == refused(Code.INVALID_REQUEST)


@pytest.mark.parametrize("version", range(6))
def test_init_without_an_id(connection, version):
    first, second = (init(connection, None, version=version) for _ in range(2))
    assert (first.code, first.epoch, second.code, second.epoch) == (0, 0, 0, 0)
    assert first.producer_id != second.producer_id
    # The timeout is then ignored.
    assert init(connection, None, timeout_ms=-5, version=version).code == Code.NONE


def test_init_without_an_id_but_with_a_producer_returns_another(connection):
    first = init(connection, None)
    second = init(connection, None, producer=first[1:])
    assert (second.code, second.epoch) == (Code.NONE, 0)
    assert second.producer_id != first.producer_id


@pytest.mark.parametrize(("version", "fenced"), [(3, Code.INVALID_PRODUCER_EPOCH), (4, 90), (5, 90)])
def test_a_producer_that_bumps_its_own_epoch(connection, name, version, fenced):
    """KIP-360."""
    old = start(connection, name)
    bumped = Initialized(Code.NONE, old.producer_id, 1)
    assert init(connection, name, producer=(old.producer_id, 0), version=version) == bumped
    # The response was lost: the same request does not bump the epoch again.
    assert init(connection, name, producer=(old.producer_id, 0), version=version) == bumped
    assert init(connection, name, producer=(old.producer_id, 1), version=version).epoch == 2
    assert init(connection, name, producer=(old.producer_id, 0), version=version) == refused(fenced)
    assert init(connection, name, producer=(old.producer_id, 3), version=version) == refused(fenced)
    assert init(connection, name, producer=(old.producer_id + 1000, 2), version=version) == refused(fenced)


def test_a_bump_after_another_producer_took_over_is_fenced(connection, name):
    old = start(connection, name)
    assert init(connection, name).epoch == 1
    assert init(connection, name, producer=(old.producer_id, 0)) == refused(Code.PRODUCER_FENCED)
    assert init(connection, name, producer=(old.producer_id, 1)).epoch == 2


def test_the_first_producer_of_an_id_may_have_an_unknown_producer_id(connection, name):
    """Its coordinator may have lost it."""
    response = retry_until_ready(lambda: init(connection, name, producer=(123_456_789, 7)), lambda answer: answer.code)
    assert (response.code, response.epoch) == (Code.NONE, 0)
    assert response.producer_id != 123_456_789


@pytest.mark.parametrize("version", [1, 4, 5])
def test_init_aborts_what_is_open(connection, name, version):
    old = start(connection, name)
    assert add_partitions(connection, old, [HERE]) == {HERE: Code.NONE}
    write(connection, old, HERE, records_of(old))
    assert init(connection, name, version=version) == refused(Code.CONCURRENT_TRANSACTIONS)
    new = start(connection, name, version=version)
    assert (new.producer_id, new.epoch) == (old.producer_id, 2)
    assert describe(connection, name).transaction_state == "Empty"
    assert add_partitions(connection, old, [HERE]) == {HERE: Code.PRODUCER_FENCED}
    assert end(connection, old).code == Code.PRODUCER_FENCED


def test_init_with_a_producer_aborts_what_is_open(connection, name):
    old = start(connection, name)
    add_partitions(connection, old, [HERE])
    own = (old.producer_id, old.epoch)
    assert init(connection, name, producer=(own[0] + 1, 0)) == refused(Code.PRODUCER_FENCED)
    assert init(connection, name, producer=own) == refused(Code.CONCURRENT_TRANSACTIONS)
    await_state(connection, name, "CompleteAbort")
    # The epoch that results from the abort is in the response to the request that caused it.
    assert init(connection, name, producer=own) == Initialized(Code.NONE, old.producer_id, 1)
    assert init(connection, name, producer=own) == Initialized(Code.NONE, old.producer_id, 1)


# AddPartitionsToTxn.


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_once_and_again(connection, name, version):
    producer = start(connection, name)
    both = {HERE: Code.NONE, THERE: Code.NONE}
    assert add_partitions(connection, producer, [HERE], version) == {HERE: Code.NONE}
    assert add_partitions(connection, producer, [HERE, THERE], version) == both
    assert add_partitions(connection, producer, [HERE], version) == {HERE: Code.NONE}
    response = describe(connection, name)
    assert response.transaction_state == "Ongoing"
    assert {(t.topic, p) for t in response.topics for p in t.partitions} == {HERE, THERE}
    assert response.transaction_start_time_ms > 0


@pytest.mark.parametrize("version", range(4))
def test_one_missing_partition_fails_the_whole_request(connection, name, version):
    producer = start(connection, name)
    nowhere, no_index = ("transactions-missing", 0), (TOPIC, 9)
    for missing in (nowhere, no_index, (TOPIC, -1)):
        assert add_partitions(connection, producer, [HERE, missing], version) == {
            HERE: Code.OPERATION_NOT_ATTEMPTED,
            missing: Code.UNKNOWN_TOPIC_OR_PARTITION,
        }
    assert describe(connection, name).transaction_state == "Empty"


def test_no_partitions_at_all(connection, name):
    producer = start(connection, name)
    assert add_partitions(connection, producer, []) == {}


@pytest.mark.parametrize(
    ("version", "fenced"),
    [(0, Code.INVALID_PRODUCER_EPOCH), (1, Code.INVALID_PRODUCER_EPOCH), (2, 90), (3, 90)],
)
def test_adding_partitions_as_another_producer(connection, name, version, fenced):
    producer = start(connection, name)
    current = start(connection, name)

    def send_request(as_whom: Producer) -> int:
        return add_partitions(connection, as_whom, [HERE], version)[HERE]

    assert send_request(producer) == fenced
    assert send_request(current.at(9)) == fenced
    assert send_request(current.at(-1)) == fenced
    assert send_request(current._replace(producer_id=current.producer_id + 1000)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(current._replace(transactional_id=f"{name}-unknown")) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(current._replace(transactional_id="")) == Code.INVALID_REQUEST
    assert send_request(current) == Code.NONE


@pytest.mark.parametrize("version", [4, 5])
def test_verification_returns_the_partitions_of_a_transaction(connection, name, version):
    first, second = start(connection, name), start(connection, f"{name}-2")
    add_partitions(connection, first, [HERE])
    response = add_batched(
        connection,
        {
            first: [HERE, THERE],
            second: [HERE],
            Producer(f"{name}-unknown", 7, 0): [HERE],
            Producer("", 7, 0): [HERE],
        },
        verify_only=True,
        version=version,
    )
    assert response == (
        Code.NONE,
        {
            (name, HERE): Code.NONE,
            (name, THERE): Code.TRANSACTION_ABORTABLE,
            (f"{name}-2", HERE): Code.TRANSACTION_ABORTABLE,
            (f"{name}-unknown", HERE): Code.INVALID_PRODUCER_ID_MAPPING,
            ("", HERE): Code.INVALID_REQUEST,
        },
    )
    # Nothing was added.
    assert describe(connection, f"{name}-2").transaction_state == "Empty"

    def verified(as_whom: Producer) -> int:
        wanted = {as_whom: [HERE]}
        return add_batched(connection, wanted, verify_only=True, version=version)[1][as_whom.transactional_id, HERE]

    assert verified(first.at(9)) == Code.PRODUCER_FENCED
    assert verified(first._replace(producer_id=1)) == Code.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [4, 5])
def test_a_batch_of_transactions_is_added(connection, name, version):
    first, second = start(connection, name), start(connection, f"{name}-2")
    missing = ("transactions-missing", 0)
    response = add_batched(
        connection,
        {first: [HERE, THERE], second: [HERE, missing], Producer(f"{name}-unknown", 7, 0): [HERE]},
        version=version,
    )
    assert response == (
        Code.NONE,
        {
            (name, HERE): Code.NONE,
            (name, THERE): Code.NONE,
            (f"{name}-2", HERE): Code.OPERATION_NOT_ATTEMPTED,
            (f"{name}-2", missing): Code.UNKNOWN_TOPIC_OR_PARTITION,
            (f"{name}-unknown", HERE): Code.INVALID_PRODUCER_ID_MAPPING,
        },
    )
    assert describe(connection, name).transaction_state == "Ongoing"
    assert describe(connection, f"{name}-2").transaction_state == "Empty"


# EndTxn.


@pytest.mark.parametrize("version", range(5))
def test_an_end_without_a_beginning(connection, name, version):
    producer = start(connection, name)
    assert end(connection, producer, commit=True, version=version).code == Code.INVALID_TXN_STATE
    assert end(connection, producer, commit=False, version=version).code == Code.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_again_and_its_opposite(connection, name, version, commit):
    producer = start(connection, name)
    add_partitions(connection, producer, [HERE])
    finish(connection, producer, commit=commit, version=version)
    assert end(connection, producer, commit=commit, version=version).code == Code.NONE
    assert end(connection, producer, commit=not commit, version=version).code == Code.INVALID_TXN_STATE
    assert describe(connection, name).producer_epoch == 0
    assert add_partitions(connection, producer, [HERE])[HERE] == Code.NONE


@pytest.mark.parametrize(
    ("version", "fenced"),
    [(0, Code.INVALID_PRODUCER_EPOCH), (1, Code.INVALID_PRODUCER_EPOCH), (2, 90), (3, 90), (4, 90), (5, 90)],
)
def test_ending_the_transaction_of_another_producer(connection, name, version, fenced):
    old = start(connection, name)
    current = start(connection, name)
    add_partitions(connection, current, [HERE])

    def send_request(as_whom: Producer) -> Initialized:
        return end(connection, as_whom, version=version)

    assert send_request(old) == refused(fenced)
    assert send_request(current.at(9)) == refused(fenced)
    another = current._replace(producer_id=current.producer_id + 1000)
    assert send_request(another) == refused(Code.INVALID_PRODUCER_ID_MAPPING)
    unknown = current._replace(transactional_id=f"{name}-unknown")
    assert send_request(unknown) == refused(Code.INVALID_PRODUCER_ID_MAPPING)
    assert send_request(current._replace(transactional_id="")) == refused(Code.INVALID_REQUEST)
    assert send_request(current).code == Code.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_every_end_bumps_the_epoch_in_version_5(connection, name, commit):
    """KIP-890. After a lost response the repeated request gets the same response."""
    producer = start(connection, name)
    for epoch in range(1, 4):
        add_partitions(connection, producer, [HERE])
        old, producer = producer, finish(connection, producer, commit=commit, version=5)
        assert (producer.producer_id, producer.epoch) == (old.producer_id, epoch)
        again = Initialized(Code.NONE, producer.producer_id, epoch)
        assert end(connection, old, commit=commit, version=5) == again
        assert end(connection, old, commit=not commit, version=5) == refused(Code.INVALID_TXN_STATE)
        assert add_partitions(connection, old, [HERE])[HERE] == Code.PRODUCER_FENCED


def test_empty_transactions_in_version_5(connection, name):
    """An abort is always possible and bumps the epoch; a commit of an empty transaction is refused."""
    producer = start(connection, name)
    assert end(connection, producer, commit=True, version=5) == refused(Code.INVALID_TXN_STATE)
    assert end(connection, producer.at(-1), commit=False, version=5).code == Code.PRODUCER_FENCED
    for state in ("after init", "after an abort", "after a commit"):
        if state == "after a commit":
            add_partitions(connection, producer, [HERE])
            producer = finish(connection, producer, version=5)
        assert end(connection, producer, commit=True, version=5) == refused(Code.INVALID_TXN_STATE), state
        old, producer = producer, finish(connection, producer, commit=False, version=5)
        assert producer.epoch == old.epoch + 1, state


def test_an_old_end_among_new_ones(connection, name):
    """Version 4 does not change the epoch, for any sender."""
    producer = start(connection, name)
    add_partitions(connection, producer, [HERE])
    producer = finish(connection, producer, version=5)
    add_partitions(connection, producer, [HERE])
    assert finish(connection, producer, version=4) == producer
    assert describe(connection, name).producer_epoch == producer.epoch
    add_partitions(connection, producer, [HERE])
    assert finish(connection, producer, version=5).epoch == producer.epoch + 1


# AddOffsetsToTxn and TxnOffsetCommit.


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_become_visible_with_the_commit(connection, name, group, version, commit):
    producer = start(connection, name)
    assert add_offsets(connection, producer, group, min(version, 4)) == Code.NONE
    assert add_offsets(connection, producer, group, min(version, 4)) == Code.NONE
    assert commit_offset(connection, producer, group, HERE, 42, version=version) == Code.NONE
    assert committed(connection, group, HERE) == (Code.NONE, -1)
    assert committed(connection, group, HERE, stable=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    (topic,) = describe(connection, name).topics
    assert topic.topic == "__consumer_offsets"
    finish(connection, producer, commit=commit)
    expected = retry_until_ready(lambda: committed(connection, group, HERE, stable=True), lambda response: response[0])
    assert expected == (Code.NONE, 42 if commit else -1)


def test_offsets_in_version_5_add_themselves(connection, name, group):
    producer = start(connection, name)
    assert commit_offset(connection, producer, group, HERE, 42, version=5) == Code.NONE
    (topic,) = describe(connection, name).topics
    assert topic.topic == "__consumer_offsets"
    assert committed(connection, group, HERE, stable=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    finish(connection, producer, version=5)
    assert committed(connection, group, HERE) == (Code.NONE, 42)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, Code.INVALID_TXN_STATE),
        (2, Code.INVALID_TXN_STATE),
        (3, Code.INVALID_TXN_STATE),
        (4, Code.TRANSACTION_ABORTABLE),
    ],
)
def test_offsets_without_a_transaction(connection, name, group, version, code):
    producer = start(connection, name)
    assert commit_offset(connection, producer, group, HERE, version=version) == code
    assert committed(connection, group, HERE) == (Code.NONE, -1)


@pytest.mark.parametrize("version", range(5))
def test_adding_offsets_as_another_producer(connection, name, group, version):
    old = start(connection, name)
    current = start(connection, name)
    fenced = Code.INVALID_PRODUCER_EPOCH if version < 2 else Code.PRODUCER_FENCED

    def send_request(as_whom: Producer) -> int:
        return add_offsets(connection, as_whom, group, version)

    assert send_request(old) == fenced
    assert send_request(current.at(9)) == fenced
    assert send_request(current._replace(producer_id=current.producer_id + 1000)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(current._replace(transactional_id=f"{name}-unknown")) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(current._replace(transactional_id="")) == Code.INVALID_REQUEST
    assert send_request(current) == Code.NONE


@pytest.mark.parametrize("version", range(6))
def test_committing_offsets_as_another_producer(connection, name, group, version):
    old = start(connection, name)
    current = start(connection, name)
    assert add_offsets(connection, current, group) == Code.NONE

    def send_request(as_whom: Producer) -> int:
        return commit_offset(connection, as_whom, group, HERE, version=version)

    assert send_request(old) == Code.INVALID_PRODUCER_EPOCH
    assert send_request(current.at(9)) == Code.INVALID_PRODUCER_EPOCH
    assert send_request(current._replace(producer_id=current.producer_id + 1000)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(current._replace(transactional_id=f"{name}-unknown")) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(current._replace(transactional_id="")) == Code.INVALID_REQUEST
    assert send_request(current) == Code.NONE


@pytest.mark.parametrize("version", [3, 4, 5])
def test_offsets_of_unknown_members(connection, name, group, version):
    """KIP-447: the group's generation fences as well."""
    producer = start(connection, name)
    add_offsets(connection, producer, group)

    def send_request(**member: Any) -> int:
        return commit_offset(connection, producer, group, HERE, version=version, **member)

    # No such group.
    assert send_request(generation=5, member="nobody") == Code.ILLEGAL_GENERATION
    assert send_request(generation=-1, member="nobody") == Code.NONE
    assert send_request(generation=0) == Code.UNKNOWN_MEMBER_ID

    _, member, _ = join(connection, group)
    joined, _, generation = join(connection, group, member)
    assert (joined, sync(connection, group, member, generation)) == (0, 0)
    assert send_request(generation=generation, member=member) == Code.NONE
    assert send_request(generation=generation + 1, member=member) == Code.ILLEGAL_GENERATION
    assert send_request(generation=generation - 1, member=member) == Code.ILLEGAL_GENERATION
    assert send_request(generation=generation, member="nobody") == Code.UNKNOWN_MEMBER_ID
    assert send_request(generation=generation, member="") == Code.UNKNOWN_MEMBER_ID
    assert send_request(generation=generation, member=member, instance="static") == Code.UNKNOWN_MEMBER_ID
    assert send_request(generation=-1, member="nobody") == Code.UNKNOWN_MEMBER_ID
    # A commit without a member is accepted, as from clients before KIP-447.
    assert send_request() == Code.NONE


@pytest.mark.parametrize("version", [3, 5])
def test_refused_offsets(connection, name, group, version):
    producer = start(connection, name)
    add_offsets(connection, producer, group)
    add_offsets(connection, producer, "")

    def send_request(partition: tuple[str, int], group: str = group, **options: Any) -> int:
        return commit_offset(connection, producer, group, partition, version=version, **options)

    assert send_request(HERE, text="x" * 4096) == Code.NONE
    assert send_request(HERE, text="x" * 4097) == Code.OFFSET_METADATA_TOO_LARGE
    assert send_request(("transactions-missing", 0)) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert send_request((TOPIC, 9)) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert send_request(HERE, group="") == Code.INVALID_GROUP_ID


def test_a_plain_commit_during_a_transaction_does_not_wait(connection, name, group):
    """The later of the two is the committed offset in the end; while one is pending, a fetch returns the other."""
    producer = start(connection, name)
    add_offsets(connection, producer, group)
    assert commit_offset(connection, producer, group, HERE, 42) == Code.NONE
    assert commit_plainly(connection, group, "", -1, TOPIC) == Code.NONE
    assert committed(connection, group, HERE) == (Code.NONE, 1)
    finish(connection, producer)
    assert retry_until_ready(lambda: committed(connection, group, HERE), lambda response: response[0]) == (Code.NONE, 1)


# Markers in transit


def test_the_next_transaction_may_have_to_wait(connection, name):
    """Requests between the decision and the last marker get a retriable error, and then succeed."""
    producer = start(connection, name)
    for _ in range(20):
        add_partitions(connection, producer, [HERE, THERE])
        assert end(connection, producer).code == Code.NONE
        response = add_partitions(connection, producer, [HERE])[HERE]
        assert response in (Code.CONCURRENT_TRANSACTIONS, Code.NONE)
        retry_until_ready(lambda: add_partitions(connection, producer, [HERE])[HERE])
        finish(connection, producer, commit=False)


# Listing and describing.


def test_describing_missing_transactions(connection, name):
    assert describe(connection, name).error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(connection, "").error_code == Code.INVALID_REQUEST


def test_states_in_the_order_of_a_transactions_life(connection, name):
    producer = start(connection, name, timeout_ms=12_345)

    def state() -> tuple[str, int, int]:
        response = describe(connection, name)
        return response.transaction_state, response.producer_epoch, len(response.topics)

    assert state() == ("Empty", 0, 0)
    add_partitions(connection, producer, [HERE])
    assert state() == ("Ongoing", 0, 1)
    producer = finish(connection, producer, version=5)
    assert state() == ("CompleteCommit", 1, 0)
    add_partitions(connection, producer, [HERE])
    finish(connection, producer, commit=False, version=4)
    assert state() == ("CompleteAbort", 1, 0)
    assert describe(connection, name).transaction_timeout_ms == 12_345


@pytest.mark.parametrize("version", range(3))
def test_listing_transactions(connection, name, version):
    empty = start(connection, f"{name}-empty")
    ongoing = start(connection, f"{name}-ongoing")
    add_partitions(connection, ongoing, [HERE])
    done = start(connection, f"{name}-done")
    add_partitions(connection, done, [HERE])
    finish(connection, done)

    def listed(**filters: Any) -> tuple[int, list[str], dict[str, str]]:
        code, unknown, found = list_transactions(connection, version=version, **filters)
        return code, unknown, {each: found[each] for each in sorted(found) if each.startswith(name)}

    states = {f"{name}-empty": "Empty", f"{name}-ongoing": "Ongoing", f"{name}-done": "CompleteCommit"}
    assert listed() == (0, [], dict(sorted(states.items())))
    assert listed(states=["Ongoing"]) == (0, [], {f"{name}-ongoing": "Ongoing"})
    assert listed(states=["ongoing", "Nonsense"]) == (0, ["Nonsense", "ongoing"], {})
    assert listed(states=["Ongoing", "Nonsense"]) == (0, ["Nonsense"], {f"{name}-ongoing": "Ongoing"})
    assert listed(producer_ids=[empty.producer_id]) == (0, [], {f"{name}-empty": "Empty"})
    assert listed(producer_ids=[2**62]) == (0, [], {})
    assert listed(states=["Empty"], producer_ids=[ongoing.producer_id]) == (0, [], {})


@pytest.mark.parametrize("version", [1, 2])
def test_listing_by_duration(connection, name, version):
    """An id without a transaction has an unlimited duration."""
    start(connection, f"{name}-empty")
    ongoing = start(connection, f"{name}-ongoing")
    add_partitions(connection, ongoing, [HERE])

    def listed(duration_ms: int) -> set[str]:
        response = list_transactions(connection, duration_ms=duration_ms, version=version)[2]
        return {each for each in response if each.startswith(name)}

    assert listed(-1) == {f"{name}-empty", f"{name}-ongoing"}
    assert listed(3_600_000) == {f"{name}-empty"}
    retry_until_ready(lambda: 0 if f"{name}-ongoing" in listed(1) else Code.CONCURRENT_TRANSACTIONS)
    assert listed(1) == {f"{name}-empty", f"{name}-ongoing"}


def test_listing_by_pattern(connection, name):
    for suffix in ("a", "b", "bb"):
        start(connection, f"{name}-{suffix}")

    def listed(pattern: str) -> tuple[int, set[str]]:
        code, _, found = list_transactions(connection, pattern=pattern)
        return code, {each.removeprefix(name) for each in found if each.startswith(name)}

    assert listed(f"{name}-.") == (0, {"-a", "-b"})
    assert listed(f"{name}-b+") == (0, {"-b", "-bb"})
    assert listed(name) == (0, set())
    assert listed(".*-bb") == (0, {"-bb"})
    assert listed("") == (0, {"-a", "-b", "-bb"})
    assert listed("(") == (Code.INVALID_REGULAR_EXPRESSION, set())


# Transactions that exceed their timeout


def test_a_transaction_past_its_timeout_is_aborted(connection, name):
    producer = start(connection, name, timeout_ms=WRITTEN_MS)
    add_partitions(connection, producer, [HERE])
    base = write(connection, producer, HERE, records_of(producer))
    assert base >= 0
    response = await_state(connection, name, "CompleteAbort")
    assert response.producer_epoch == producer.epoch + 1
    assert produce(connection, producer, HERE, records_of(producer, 1))[0] == Code.INVALID_PRODUCER_EPOCH
    assert add_partitions(connection, producer, [HERE])[HERE] == Code.PRODUCER_FENCED
    assert end(connection, producer) == refused(Code.PRODUCER_FENCED)
    assert end(connection, producer, commit=False, version=5) == Initialized(Code.NONE, producer.producer_id, 1)
    assert end(connection, producer, commit=True, version=5) == refused(Code.INVALID_TXN_STATE)
    # The producer continues with a new epoch, by itself or after a new InitProducerId.
    bumped = init(connection, name, producer=(producer.producer_id, producer.epoch))
    assert bumped == Initialized(Code.NONE, producer.producer_id, producer.epoch + 1)
    assert start(connection, name).epoch == producer.epoch + 2


def test_no_timeout_without_a_transaction(connection, name):
    producer = start(connection, name, timeout_ms=1)
    add_partitions(connection, start(connection, f"{name}-other", timeout_ms=1), [HERE])
    await_state(connection, f"{name}-other", "CompleteAbort")
    assert describe(connection, name).transaction_state == "Empty"
    assert describe(connection, name).producer_epoch == producer.epoch


# The group's side, again


def test_a_marker_alone_commits_offsets(connection, name, group):
    """The coordinator of the transaction may be another broker."""
    producer = start(connection, name)
    add_offsets(connection, producer, group)
    commit_offset(connection, producer, group, HERE, 42)
    (topic,) = describe(connection, name).topics
    where = ("__consumer_offsets", topic.partitions[0])
    assert write_markers(connection, producer, [where], commit=True) == {where: Code.NONE}
    assert committed(connection, group, HERE, stable=True) == (Code.NONE, 42)


@pytest.mark.parametrize("version", [3, 5])
def test_offsets_of_static_members(connection, name, group, version):
    producer = start(connection, name)
    add_offsets(connection, producer, group)
    joined, member, generation = join(connection, group, instance="static")
    assert (joined, sync(connection, group, member, generation)) == (0, 0)

    def send_request(**options: Any) -> int:
        given = {"generation": generation, "member": member, "instance": "static", **options}
        return commit_offset(connection, producer, group, HERE, version=version, **given)

    assert send_request() == Code.NONE
    assert send_request(member="another") == Code.FENCED_INSTANCE_ID
    assert send_request(instance="unknown") == Code.UNKNOWN_MEMBER_ID
    assert send_request(generation=generation + 1) == Code.ILLEGAL_GENERATION
    assert send_request(instance=None) == Code.NONE


def test_offsets_while_a_group_rebalances(connection, name, group):
    producer = start(connection, name)
    add_offsets(connection, producer, group)
    _, member, _ = join(connection, group)
    _, _, generation = join(connection, group, member)
    # It has not synced yet. A plain commit would have to wait.
    response = commit_offset(connection, producer, group, HERE, generation=generation, member=member)
    assert response == Code.NONE
    assert commit_plainly(connection, group, member, generation, TOPIC) == Code.REBALANCE_IN_PROGRESS


def test_a_group_with_pending_offsets_is_deleted(connection, name, group, broker):
    from compat_tests.clients import load

    producer = start(connection, name)
    add_offsets(connection, producer, group)
    commit_offset(connection, producer, group, HERE, 42)
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        assert group in admin.groups()
        admin.delete_group(group)
    assert committed(connection, group, HERE) == (Code.NONE, -1)
    finish(connection, producer)
    assert committed(connection, group, HERE, stable=True) == (Code.NONE, -1)


@pytest.mark.parametrize("key_type", [0, 1])
def test_coordinators_by_key(connection, key_type):
    from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

    def found(key: str, version: int) -> int:
        if version < 4:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
            return connection.ask(request, FindCoordinatorResponse, version).error_code
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        (response,) = connection.ask(request, FindCoordinatorResponse, version).coordinators
        return response.error_code

    for version in range(1, 7):
        assert found("some", version) == 0
        assert found("", version) == 0
    assert found("x" * 1000, 4) == 0
