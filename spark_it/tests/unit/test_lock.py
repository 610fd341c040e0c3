from dataclasses import replace

import pytest

from odradek.spark_it.definition.guarantees import find_stateful_reason
from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.state import lock as locks
from odradek.spark_it.state.lock import (
    FILE,
    Lock,
    LockError,
    find_changes,
    get_checkpoint_folder,
    make_generation,
    make_lock,
    read_lock,
    write_lock,
)
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, pipeline, transform

COUNTS = transform("SELECT customer, count(*) n FROM orders GROUP BY customer")
UPPER = transform("SELECT upper(a) FROM orders")


def lock(text):
    one = pipeline(text)
    return make_lock(one, find_stateful_reason(one), 7)


def changed(before, after):
    return find_changes(pipeline(after), lock(before), lock(after))


def test_generations_grow():
    assert make_generation(600_000, None) == 10
    assert make_generation(600_000, 4) == 10
    assert make_generation(600_000, 10) == 11


def test_markers_grow_with_batches_and_generations():
    batches = ((1, 0), (1, 1), (1, 1 << 31), (2, 0), (29_000_000, 5))
    markers = [make_marker_number(*batch) for batch in batches]
    assert markers == sorted(set(markers)) and markers[0] > 0 and markers[-1] < 1 << 63


@pytest.mark.parametrize(
    "one",
    [
        Lock("a", 1, False, None, 4, {"sink": "x"}),
        Lock('we"ird\\', 2, True, "batches", 8, {"source.a": "x", "é": "y"},
             {"orders": {("a.b", 0): 5, ("c", 12): 0}, "none": {}}, True, {"a.b": "x-_", "c": "y"}, "0a1b", True),
    ],
)  # fmt: skip
def test_a_written_lock_is_read_back(tmp_path, one):
    assert read_lock(tmp_path / "state") is None
    write_lock(tmp_path / "state", one)
    assert read_lock(tmp_path / "state") == one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "cannot be parsed"),
        ("version = 3", "has version 3; this release supports version 2$"),
        ("version = 1", "has version 1; this release supports version 2; start over with reset"),
        ("version = 2", "damaged"),
    ],
)
def test_damaged_locks(tmp_path, text, message):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(LockError, match=message):
        read_lock(tmp_path)


def test_each_generation_has_its_checkpoint(tmp_path):
    one = Lock("a", 1, False, None, 4, {})
    assert get_checkpoint_folder(tmp_path, one) != get_checkpoint_folder(tmp_path, replace(one, generation=2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SOURCE + COUNTS + CONSOLE, SOURCE + COUNTS.replace("customer, ", "customer, -- who\n ")
         + CONSOLE),
        (SOURCE + UPPER + CONSOLE, SOURCE + UPPER.replace("upper", "lower") + CONSOLE),
        (SOURCE + CONSOLE, SOURCE.replace("BIGINT", "INT") + CONSOLE),
        (SOURCE + TOPIC, SOURCE + "max.offsets.per.trigger = 5\n" + TOPIC),
        (SOURCE + TOPIC, "tasks.max = 9\n" + SOURCE + TOPIC),
        (SOURCE + TOPIC, SOURCE + TOPIC + 'key.fields = "amount"\n'),
    ],
)  # fmt: skip
def test_changes_that_keep_the_checkpoint(before, after):
    assert changed(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "what", "first"),
    [
        (SOURCE + CONSOLE, SOURCE.replace('topics = "orders"', 'topics = "other"') + CONSOLE,
         "source orders reads from another place", "committed"),
        (SOURCE + COUNTS + CONSOLE, SOURCE.replace("BIGINT", "INT") + COUNTS + CONSOLE,
         "the columns of source orders changed", "earliest"),
        (SOURCE + COUNTS + CONSOLE, SOURCE + COUNTS.replace("count(*)", "max(amount)") + CONSOLE,
         "the transforms changed", "earliest"),
        (SOURCE + UPPER + CONSOLE, SOURCE + COUNTS + CONSOLE, "the transforms changed", "earliest"),
        (SOURCE + TOPIC, SOURCE + TOPIC.replace("out", "there"), "the sink writes to another place", "committed"),
        ("tasks.max = 2\n" + SOURCE + COUNTS + TOPIC, "tasks.max = 3\n" + SOURCE + COUNTS + TOPIC,
         "tasks.max changed from 2 to 3", "earliest"),
    ],
)  # fmt: skip
def test_changes_that_need_a_reset(before, after, what, first):
    (change,) = changed(before, after)
    assert (change.what, change.resets[0]) == (what, first)


def test_several_changes():
    generator = 'name = "orders"\n[source.numbers]\nconnector = "generator"\n' + TOPIC
    found = changed(SOURCE + TOPIC, generator)
    assert [change.what for change in found] == [
        "source numbers was added",
        "source orders was removed",
        "the sink would use batch transactions instead of offset transactions",
    ]
    assert {change.resets for change in found} == {("earliest",)}
    assert str(found[0]) == (
        "source numbers was added: the checkpoint has the offsets of the earlier sources; revert the change, or reset "
        "--to earliest"
    )


def test_the_lock_has_the_result_of_sparks_analysis():
    one = pipeline(SOURCE + transform("SELECT amount FROM orders") + TOPIC)
    found = make_lock(one, "Exchange in step", 7)
    assert locks.find_stateful_reason(one, found) == "Spark's plan"
    assert find_changes(one, found, make_lock(one, locks.find_stateful_reason(one, found), 7)) == []
    assert (
        locks.find_stateful_reason(one, make_lock(one, None, 7)) is None
        and locks.find_stateful_reason(one, None) is None
    )
    other = pipeline(SOURCE + transform("SELECT placed FROM orders") + TOPIC)
    assert locks.find_stateful_reason(other, found) is None
    grouped = pipeline(SOURCE + transform("SELECT count(*) n FROM orders GROUP BY amount") + TOPIC)
    assert locks.find_stateful_reason(grouped, None) == "GROUP BY in step"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("jdbc:postgresql://h/db?user=u&password=old&ssl=true", "jdbc:postgresql://h/db?user=u&password=new&ssl=true"),
        ("jdbc:mysql://u:old@h/db", "jdbc:mysql://u:new@h/db"),
        ("jdbc:sqlserver://h;password={o;ld};database=d", "jdbc:sqlserver://h;password=new;database=d"),
    ],
)
def test_a_new_password_is_not_another_place(before, after):
    def sink(url):
        return f'{SOURCE}[sink]\nconnector = "jdbc"\nconnection.url = "{url}"\ntable.name.format = "t"\n'

    assert changed(sink(before), sink(after)) == []
    assert lock(sink(before)).hashes == lock(sink(after)).hashes
    assert [change.what for change in changed(sink(before), sink(after.replace("h", "g", 1)))] != []
    source = '[source.t]\nconnector = "jdbc"\nconnection.url = "{}"\ntable.whitelist = "t"\n'
    source += 'incrementing.column.name = "id"\n'
    one, other = (f'name = "p"\n{source.format(url)}{CONSOLE}' for url in (before, after))
    assert changed(one, other) == []
