import json
import shutil
from dataclasses import replace

import pytest

from odradek.spark_it.definition.guarantees import find_stateful_reason
from odradek.spark_it.exactly_once.markers import BATCHES_TOPIC
from odradek.spark_it.execution.preflight import (
    EARLIEST,
    LATEST,
    RefusedError,
    check_topics,
    make_claim,
    plan_start,
    record_claim,
)
from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import Claim, SinkError
from odradek.spark_it.state import reset
from odradek.spark_it.state.lock import get_checkpoint_folder, make_lock, read_lock, write_lock
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, pipeline, transform
from spark_it.tests.unit.test_reset import COUNTS, A, B, FakeCluster, begun

NOW_MS = 600_000


def begin(one, stateful, group, now_ms, written=None):
    """Do what a run does before it reads. The sink's newest marker is `written`, by default the group's newest."""
    began = plan_start(one, stateful, group, now_ms)
    make_claim(one, began, max(group.markers.values(), default=0) if written is None else written, frozenset())
    return began


def has_checkpoint(began):
    return began.newest_marker > make_marker_number(began.lock.generation, -1)


def starts(one, group):
    return begin(one, find_stateful_reason(one), group, NOW_MS).starts


def refusal(one, group, written=None, now_ms=NOW_MS):
    before = read_lock(one.state_folder)
    with pytest.raises(RefusedError) as refused:
        begin(one, find_stateful_reason(one), group, now_ms, written)
    assert read_lock(one.state_folder) == before
    return str(refused.value)


def source(more):
    return SOURCE + more + "\n"


def test_a_first_run(tmp_path):
    one = pipeline(SOURCE + CONSOLE, folder=tmp_path)
    found = begin(one, None, FakeCluster(), NOW_MS)
    assert not has_checkpoint(found) and found.starts == {}
    assert read_lock(one.state_folder) == found.lock and found.lock.generation == 10
    assert found.folder == one.state_folder / "checkpoint" / "10"
    again = begin(one, None, FakeCluster(), NOW_MS + 3_600_000)
    assert again.lock == found.lock


def test_start_offsets_of_the_file(tmp_path):
    for more, begins in (
        ('auto.offset.reset = "latest"', {}),
        ('start.timestamp = "1970-01-01T00:00:00.017Z"', {A: 17, B: 9}),
        ('start.offsets = "orders:1:4"', {A: EARLIEST, B: 4}),
        ('start.offsets = "orders:1:4"\nauto.offset.reset = "latest"', {A: LATEST, B: 4}),
    ):
        one = pipeline(source(more) + CONSOLE, folder=tmp_path)
        assert starts(one, FakeCluster()) == ({"orders": begins} if begins else {})
        shutil.rmtree(one.state_folder)
    one = pipeline(source('start.offsets = "orders:7:4"') + CONSOLE, folder=tmp_path)
    assert refusal(one, FakeCluster()) == "start.offsets: the source has no partition orders-7"


def test_a_pattern_that_matches_nothing():
    class Nothing(FakeCluster):
        def list_partitions(self, source):
            return []

    text = SOURCE.replace('topics = "orders"', 'topics.regex = "x.*"')
    with pytest.raises(RefusedError, match=r"source orders: no topic matches x\.\*"):
        check_topics(pipeline(text + CONSOLE), Nothing())


def test_a_checkpoint_takes_precedence(tmp_path):
    one, lock = begun(tmp_path, SOURCE + CONSOLE)
    found = begin(one, None, FakeCluster({A: 30, B: 7}), NOW_MS)
    assert has_checkpoint(found) and found.starts == {} and found.lock == replace(lock, topics={"orders": "first"})


def test_a_changed_pipeline_is_refused(tmp_path):
    begun(tmp_path, SOURCE + CONSOLE)
    one = pipeline(SOURCE.replace('topics = "orders"', 'topics = "others"') + CONSOLE, folder=tmp_path)
    said = refusal(one, FakeCluster())
    assert said.startswith("source orders reads from another place: ") and "reset --to committed" in said
    one = pipeline(SOURCE + COUNTS + CONSOLE, folder=tmp_path)
    assert "the transforms changed" in refusal(one, FakeCluster())


def test_a_folder_of_another_name_is_refused(tmp_path):
    other, _ = begun(tmp_path, SOURCE.replace('name = "orders"', 'name = "others"') + CONSOLE)
    one = pipeline(SOURCE + CONSOLE, folder=tmp_path)
    other.state_folder.rename(one.state_folder)
    assert refusal(one, FakeCluster()).startswith("name changed from others to orders: ")


DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize(("retention_ms", "is_safe_for_ms"), [(7 * DAY_MS, 3.5 * DAY_MS), (None, DAY_MS // 2)])
@pytest.mark.parametrize("batch", [0, 4])
def test_a_batch_whose_markers_may_have_expired(tmp_path, batch, retention_ms, is_safe_for_ms):
    """A partition whose first records are in the batch has no marker, whether they are written or not."""
    added = '{"orders":{"0":%d,"1":7,"2":3}}' if batch else '{"orders":{"0":%d,"1":7}}'
    one, lock = begun(tmp_path, SOURCE + TOPIC, planned=batch, done=batch - 1)
    offsets = get_checkpoint_folder(one.state_folder, lock) / "offsets" / str(batch)
    about = json.dumps({"batchTimestampMs": DAY_MS})
    offsets.write_text(f"v1\n{about}\n{added % (10 * batch)}")
    group = FakeCluster({A: 10 * batch - 10 if batch else 5} | ({B: 7} if batch else {}))
    group.retention_ms = retention_ms
    for clock in (1, -1):
        assert has_checkpoint(begin(one, None, group, DAY_MS + clock * (is_safe_for_ms - 1)))
        said = refusal(one, group, now_ms=DAY_MS + clock * (is_safe_for_ms + 1))
        assert said.startswith(f"batch {batch} is incomplete, and group orders has no offset for orders-")
        assert ("(assumed, because" in said) == (retention_ms is None) and said.endswith("reset --to earliest")
    marked = FakeCluster({A: 5, B: 7, ("orders", 2): 3})
    assert has_checkpoint(begin(one, None, marked, 100 * DAY_MS))
    # A state has markers since its first run: without any they are lost, however young the batch is.
    assert "has no offsets at all" in refusal(one, FakeCluster(), now_ms=DAY_MS)


def test_an_old_batch_of_other_sinks(tmp_path):
    one, _ = begun(tmp_path, SOURCE + CONSOLE, planned=0, done=-1)
    assert has_checkpoint(begin(one, None, FakeCluster(), 100 * DAY_MS))


def test_a_change_that_keeps_the_checkpoint(tmp_path):
    _, lock = begun(tmp_path, SOURCE + transform("SELECT amount FROM orders") + CONSOLE)
    one = pipeline(SOURCE + transform("SELECT placed FROM orders") + CONSOLE, folder=tmp_path)
    found = begin(one, None, FakeCluster(), NOW_MS)
    assert has_checkpoint(found) and read_lock(one.state_folder) == found.lock != lock


def test_a_checkpoint_restored_from_a_copy(tmp_path):
    one, _ = begun(tmp_path, SOURCE + CONSOLE)
    said = refusal(one, FakeCluster({A: 31, B: 7}))
    assert "is older than the offsets of group orders (orders-0: 30 in the checkpoint, 31 committed)" in said
    assert said.endswith("reset --to committed or reset --to earliest")
    # Offset transactions skip what is written.
    one, _ = begun(tmp_path / "units", SOURCE + TOPIC)
    assert has_checkpoint(begin(one, None, FakeCluster({A: 31, B: 7}), NOW_MS))


def test_a_lost_checkpoint(tmp_path):
    one = pipeline(SOURCE + CONSOLE, folder=tmp_path)
    said = refusal(one, FakeCluster({A: 31}))
    assert said.startswith("group orders has committed offset 31 of orders-0, but there is no checkpoint in ")
    assert said.endswith("reset --to committed or reset --to earliest")
    # A group at the first offset has read nothing.
    assert starts(one, FakeCluster({A: 0})) == {}


def test_offset_transactions_continue_without_their_checkpoint(tmp_path):
    one, _ = begun(tmp_path, SOURCE + TOPIC)
    shutil.rmtree(one.state_folder)
    assert starts(one, FakeCluster({A: 31})) == {"orders": {A: 31, B: 0}}


@pytest.mark.parametrize(
    ("more", "begins"),
    [
        ("", {A: 5, B: 0}),
        ('auto.offset.reset = "latest"', {A: 48, B: 9}),
        ('auto.offset.reset = "latest"\nisolation.level = "read_uncommitted"', {A: 50, B: 9}),
        ('start.offsets = "orders:1:4"', {A: 5, B: 4}),
    ],
)
def test_offset_transactions_start_with_markers(tmp_path, more, begins):
    """The markers keep the start offsets, so these are the same if the first run ends before its first batch."""
    one = pipeline(source(more) + TOPIC, folder=tmp_path)
    group = FakeCluster()
    began = plan_start(one, None, group, NOW_MS)
    claim = make_claim(one, began, 0, frozenset())
    assert began.starts == {"orders": begins} and claim.start_offsets == begins and claim.is_new
    group.offsets = dict(begins)
    group.fetch_latest = group.fetch_stable_ends = lambda partitions: {A: 60, B: 60}
    assert starts(one, group) == {"orders": begins}


def test_offset_transactions_do_not_continue_at_offsets_that_do_not_exist(tmp_path):
    """A run without a checkpoint is refused like one with a checkpoint."""
    one = pipeline(SOURCE + TOPIC, folder=tmp_path)
    assert "orders-0 ends at offset 3, but the pipeline has read up to 31" in refusal(one, CreatedAgain({A: 31}))
    assert "records 31 to 39 of orders-0 were deleted before they were read" in refusal(one, DeletedRecords({A: 31}))
    going_on = pipeline(source("fail.on.data.loss = false") + TOPIC, folder=tmp_path)
    assert starts(going_on, DeletedRecords({A: 31})) == {"orders": {A: 31, B: 0}}


def test_offset_transactions_after_a_reset_omit_partitions_that_do_not_exist(tmp_path):
    """Spark refuses offsets of partitions that do not exist."""
    one = pipeline(SOURCE + TOPIC, folder=tmp_path)
    write_lock(one.state_folder, replace(make_lock(one, None, 10), start={"orders": {A: 5, ("gone", 0): 1}}))
    assert starts(one, FakeCluster({A: 6})) == {"orders": {A: 6, B: 0}}


BATCHES = SOURCE + COUNTS + TOPIC
PART = (BATCHES_TOPIC, 3)


def batches(newest, generation=4):
    group = FakeCluster()
    group.markers = {PART: make_marker_number(generation, newest)}
    return group


def test_batches_that_the_checkpoint_does_not_have(tmp_path):
    """A batch of the same number could have other rows, and would count as written."""
    one, lock = begun(tmp_path, BATCHES, planned=3, done=2)
    assert has_checkpoint(begin(one, find_stateful_reason(one), batches(3), NOW_MS))
    said = refusal(one, batches(4))
    assert said.startswith("the topic sink has batch 4 of pipeline orders, which ")
    assert "restored from a backup" in said and said.endswith("reset --to earliest or reset --to committed")
    assert "batch 0" in refusal(one, batches(0, generation=5))
    shutil.rmtree(get_checkpoint_folder(one.state_folder, lock))
    assert "batch 0" in refusal(one, batches(0))
    # A reset has taken the batches of an earlier generation into account.
    assert not has_checkpoint(begin(one, find_stateful_reason(one), batches(7, generation=3), NOW_MS))
    shutil.rmtree(one.state_folder)
    assert "batch 7" in refusal(one, batches(7, generation=3))


def test_batches_of_a_source_that_has_no_offsets(tmp_path):
    text = 'name = "orders"\n[source.g]\nconnector = "generator"\n' + TOPIC
    one = pipeline(text, folder=tmp_path)
    assert refusal(one, batches(0)).endswith("; reset --to earliest")
    reset.execute_plan(one, reset.plan(one, None, None, "earliest", batches(0), NOW_MS), FakeCluster())
    assert not has_checkpoint(begin(one, None, batches(0), NOW_MS))


FILES = '[sink]\nconnector = "files"\npath = "out"\nformat = "json"\n'


def test_a_lost_state_whose_batches_are_in_the_sink(tmp_path):
    """Sources without topics have no group whose offsets would show it."""
    text = 'name = "orders"\n[source.g]\nconnector = "generator"\n' + FILES
    one = pipeline(text, folder=tmp_path)
    said = refusal(one, FakeCluster(), make_marker_number(4, 7))
    assert said.startswith("the files sink has batch 7 of pipeline orders, which ")
    assert said.endswith("; reset --to earliest")
    # A second attempt is refused, too.
    assert "batch 7" in refusal(one, FakeCluster(), make_marker_number(4, 7))
    reset.execute_plan(one, reset.plan(one, None, None, "earliest", FakeCluster(), NOW_MS), FakeCluster())
    lock = begin(one, None, FakeCluster(), NOW_MS, make_marker_number(4, 7)).lock
    # The batch is of the same generation, whose checkpoint is lost, or of a copy that was reset later.
    assert "batch 0" in refusal(one, FakeCluster(), make_marker_number(lock.generation, 0))
    ahead = make_marker_number(lock.generation + 100, 0)
    with pytest.raises(RefusedError, match=r"has batch 0 .*; reset --to earliest"):
        begin(one, None, FakeCluster(), NOW_MS, ahead)
    assert "batch 0" in refusal(one, FakeCluster(), ahead)
    # The reset is effective, however far the sink's generation is ahead of the clock.
    lock = read_lock(one.state_folder)
    reset.execute_plan(one, reset.plan(one, None, lock, "earliest", FakeCluster(), NOW_MS), FakeCluster())
    assert begin(one, None, FakeCluster(), NOW_MS, ahead).lock.generation == lock.generation + 1


@pytest.mark.parametrize("text", [SOURCE + TOPIC, BATCHES, SOURCE + FILES])
def test_two_copies_that_start_before_the_first_record(tmp_path, text):
    """Both start in the same minute. After a reset the second one replaces the first one."""
    one, two = (pipeline(text, folder=tmp_path / name) for name in "ab")

    def begun_by(copy, owners, written=0):
        began = plan_start(copy, find_stateful_reason(copy), FakeCluster(), NOW_MS)
        return began, make_claim(copy, began, written, owners)

    first, claim = begun_by(one, frozenset())
    assert claim.is_new and claim.state == first.lock.state == read_lock(one.state_folder).state != ""
    owners, written = {claim.state}, make_marker_number(first.lock.generation, -1)
    for has in (0, written):
        with pytest.raises(RefusedError, match=r"sink belongs to another copy of pipeline orders.*: reset --to "):
            begun_by(two, owners, has)
    assert read_lock(two.state_folder) is None
    assert begun_by(one, owners, written)[1].replaced == frozenset()
    with pytest.raises(SinkError, match="at the same time"):
        Claim("two", 10).check(owners, "the table")

    group = FakeCluster()
    reset.execute_plan(two, reset.plan(two, find_stateful_reason(two), None, "earliest", group, NOW_MS), group)
    if text == SOURCE + TOPIC:
        # The reset has committed the group's offsets for its state.
        owners = {read_lock(two.state_folder).state}
    second, claim = begun_by(two, owners, written)
    assert claim.replaced == owners - {claim.state}
    record_claim(two, second)
    assert not read_lock(two.state_folder).takes_over
    with pytest.raises(RefusedError, match="belongs to another copy"):
        begun_by(one, {claim.state})
    # The state of the reset has claimed the sink once, and does not claim it again.
    with pytest.raises(RefusedError, match="belongs to another copy"):
        begun_by(two, {"third"})


def test_after_a_reset(tmp_path):
    one, lock = begun(tmp_path, SOURCE + CONSOLE)
    group = FakeCluster({A: 30, B: 7})
    planned = reset.plan(one, None, lock, "earliest", group, NOW_MS)
    write_lock(one.state_folder, planned.lock)
    found = begin(one, None, group, NOW_MS)
    # The pending reset is finished first.
    assert group.offsets == {A: 5, B: 0} and not found.lock.is_pending
    assert found.starts == {"orders": {A: 5, B: 0}} and not has_checkpoint(found)
    assert not get_checkpoint_folder(one.state_folder, lock).exists()
    # The group's offset advances, then the checkpoint is lost.
    group.offsets[A] = 6
    assert "there is no checkpoint" in refusal(one, group)


def test_after_a_reset_and_another_change(tmp_path):
    one, lock = begun(tmp_path, SOURCE + CONSOLE)
    group = FakeCluster()
    reset.execute_plan(one, reset.plan(one, None, lock, "earliest", group, NOW_MS), group)
    group.offsets = {}
    text = SOURCE.replace('topics = "orders"', 'topics = "orders,others"') + COUNTS + CONSOLE
    other = pipeline(text, folder=tmp_path)
    found = begin(other, find_stateful_reason(other), group, NOW_MS)
    assert found.starts == {} and found.lock.is_stateful and found.lock.generation > lock.generation


def test_a_topic_with_the_name_and_not_the_id_of_the_one_that_was_read(tmp_path):
    """The new topic may have more records than the earlier one had."""
    one, _ = begun(tmp_path, SOURCE + CONSOLE)
    group = FakeCluster()
    assert begin(one, None, group, NOW_MS).lock.topics == {"orders": "first"}
    group.id = "second"
    said = refusal(one, group)
    assert said.startswith("source orders: topic orders has another topic id than the topic that the pipeline has read")
    assert ": it was deleted and created again, or " in said
    assert "another cluster" in said and said.endswith("reset --to committed or reset --to earliest")
    going_on = pipeline(source("fail.on.data.loss = false") + CONSOLE, folder=tmp_path)
    assert begin(going_on, None, group, NOW_MS).lock.topics == {"orders": "second"}
    # A topic that was never read may be another one.
    fresh = pipeline(SOURCE + CONSOLE, folder=tmp_path / "fresh")
    begin(fresh, None, FakeCluster(), NOW_MS)
    assert not has_checkpoint(begin(fresh, None, group, NOW_MS))


def test_a_topic_that_was_created_again_after_a_reset(tmp_path):
    one, lock = begun(tmp_path, SOURCE + CONSOLE)
    group = FakeCluster()
    reset.execute_plan(one, reset.plan(one, None, lock, "committed", group, NOW_MS), group)
    group.id = "second"
    assert "topic orders has another topic id" in refusal(one, group)


class DeletedRecords(FakeCluster):
    def fetch_earliest(self, partitions):
        return {A: 40, B: 0}


class CreatedAgain(FakeCluster):
    def fetch_latest(self, partitions):
        return {A: 3, B: 9}


def test_deleted_records(tmp_path):
    one, _ = begun(tmp_path, SOURCE + CONSOLE)
    assert refusal(one, DeletedRecords()) == (
        "records 30 to 39 of orders-0 were deleted before they were read; "
        "set fail.on.data.loss = false to continue without them"
    )
    said = refusal(one, CreatedAgain())
    assert said.startswith(
        "orders-0 ends at offset 3, but the pipeline has read up to 30: the topic was deleted and created again; reset"
    )
    going_on = pipeline(source("fail.on.data.loss = false") + CONSOLE, folder=tmp_path)
    assert has_checkpoint(begin(going_on, None, DeletedRecords(), NOW_MS))
