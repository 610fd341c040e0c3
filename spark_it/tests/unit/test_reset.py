import shutil
from dataclasses import replace

import pytest

from odradek.spark_it.definition.guarantees import find_stateful_reason
from odradek.spark_it.exactly_once.slots import MarkerError, OffsetTransaction, TransactionalSlot
from odradek.spark_it.execution.preflight import RefusedError, plan_start
from odradek.spark_it.interfaces.marker import BatchMarker
from odradek.spark_it.kafka.requests import ClusterError
from odradek.spark_it.state.lock import get_checkpoint_folder, make_lock, read_lock, write_lock
from odradek.spark_it.state.progress import Progress, write_progress
from odradek.spark_it.state.reset import ResetError, execute_plan, finish_reset, plan
from odradek.spark_it.state.status import describe_lags, describe_state, fetch_lags, read_state
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, StubCluster, pipeline, transform
from spark_it.tests.unit.test_checkpoint import checkpoint

A, B = ("orders", 0), ("orders", 1)
COUNTS = transform("SELECT amount, count(*) n FROM orders GROUP BY amount")


class FakeCluster(StubCluster):
    """A topic with offsets 5 to 50 in partition 0, 0 to 9 in partition 1."""

    def __init__(self, committed=None):
        self.offsets = committed or {}
        self.markers = {}
        self.metadata = ""
        self.retention_ms = 7 * 24 * 3_600_000
        self.id = "first"
        self.fails = False

    def list_partitions(self, source):
        return [A, B]

    def fetch_topic_ids(self, topics):
        return dict.fromkeys(topics, self.id)

    def fetch_earliest(self, partitions):
        return {A: 5, B: 0}

    def fetch_latest(self, partitions):
        return {A: 50, B: 9}

    def fetch_stable_ends(self, partitions):
        return {A: 48, B: 9}

    def fetch_offsets_retention_ms(self):
        return self.retention_ms

    def fetch_offsets_at(self, partitions, timestamp_ms):
        return {A: timestamp_ms, B: 9}

    def fetch_committed(self, group, partitions):
        if group == "orders:batches":
            return {at: marker for at, marker in self.markers.items() if at in partitions}
        assert group == "orders"
        return dict(self.offsets)

    def commit(self, group, offsets, metadata=""):
        if self.fails:
            raise ClusterError("down")
        self.offsets.update(offsets)
        self.metadata = metadata


def begun(tmp_path, text, planned=3, done=3):
    """A pipeline whose checkpoint has read partition 0 up to 30 and partition 1 up to 7."""
    one = pipeline(text, folder=tmp_path)
    lock = make_lock(one, find_stateful_reason(one), 4, "first")
    write_lock(one.state_folder, lock)
    checkpoint(get_checkpoint_folder(one.state_folder, lock), planned, done)
    return one, lock


def planned(one, lock, to, group, now_ms=600_000):
    return plan(one, find_stateful_reason(one), lock, to, group, now_ms)


def test_reset_to_earliest(tmp_path):
    one, lock = begun(tmp_path, SOURCE + TOPIC)
    group = FakeCluster({A: 30, B: 7})
    reset = planned(one, lock, "earliest", group)
    assert reset.lock.start == {"orders": {A: 5, B: 0}}
    assert reset.again == {"orders": 25 + 7}
    assert reset.sentences == (
        "source orders reads 32 records again",
        "their rows are written a second time; existing rows stay in the sink",
    )
    assert read_lock(one.state_folder) == lock and group.offsets == {A: 30, B: 7}

    done = execute_plan(one, reset, group)
    assert read_lock(one.state_folder) == done == replace(reset.lock, is_pending=False)
    assert done.generation == 11 and group.offsets == {A: 5, B: 0}
    assert not get_checkpoint_folder(one.state_folder, lock).exists()


def test_a_reset_creates_a_state_and_its_offsets_are_markers(tmp_path):
    """Transactions of the earlier state that are not yet written are refused, and so is a copy of that state."""
    one, lock = begun(tmp_path, SOURCE + TOPIC)
    group = FakeCluster({A: 30, B: 7})
    first, second = (execute_plan(one, planned(one, lock, "committed", group), group) for _ in range(2))
    assert len({lock.state, first.state, second.state}) == 3 and second.takes_over
    marker = BatchMarker.read(30, group.metadata)
    assert marker == BatchMarker(30, second.generation, state=second.state)
    earlier = OffsetTransaction(
        TransactionalSlot("t", "orders", *A), 40, lock.generation, 4, False, "reset", 30, state=lock.state
    )
    with pytest.raises(MarkerError, match=r"belongs to another copy .*; reset"):
        earlier.is_written(marker)
    assert not replace(earlier, state=second.state).is_written(marker)


def test_reset_to_committed(tmp_path):
    one, lock = begun(tmp_path, SOURCE + TOPIC)
    reset = planned(one, lock, "committed", FakeCluster({A: 40, B: 7}))
    assert reset.lock.start == {"orders": {A: 40, B: 7}}
    assert reset.sentences == ("source orders continues at its current position",)
    behind = planned(one, lock, "committed", FakeCluster({A: 20}))
    assert behind.lock.start == {"orders": {A: 30, B: 7}}


@pytest.mark.parametrize("text", [SOURCE + TOPIC, SOURCE + CONSOLE])
def test_reset_to_committed_in_a_topic_that_was_created_again(tmp_path, text):
    """The offsets of group and checkpoint are of the earlier topic."""
    one, lock = begun(tmp_path, text)

    class CreatedAgain(FakeCluster):
        def fetch_latest(self, partitions):
            return {A: 12, B: 9}

    reset = planned(one, lock, "committed", CreatedAgain({A: 30, B: 7}))
    assert reset.lock.start == {"orders": {A: 5, B: 7}}
    again = planned(one, lock, "committed", CreatedAgain({A: 11, B: 8}))
    assert again.lock.start == {"orders": {A: 11, B: 8}}


def test_reset_to_committed_in_a_topic_with_another_id(tmp_path):
    """The number of records in the topic has no effect."""
    one, lock = begun(tmp_path, SOURCE + CONSOLE)
    group = FakeCluster()
    group.id = "second"
    assert planned(one, lock, "committed", group).lock.start == {"orders": {A: 30, B: 7}}
    reset = planned(one, replace(lock, topics={"orders": "first"}), "committed", group)
    assert reset.lock.start == {"orders": {A: 5, B: 0}} and reset.lock.topics == {"orders": "second"}


@pytest.mark.parametrize("ends", [(10, 50), (50, 10)])
def test_sources_that_have_reached_different_offsets_of_a_topic(tmp_path, ends):
    """The checkpoint does not name its sources, and the offset of another source would skip records."""
    again = SOURCE.replace('name = "orders"', "").replace("source.orders", "source.again")
    both = transform("SELECT * FROM orders UNION ALL SELECT * FROM again")
    one = pipeline(SOURCE + again + both + CONSOLE, folder=tmp_path)
    lock = make_lock(one, None, 4, "first")
    write_lock(one.state_folder, lock)
    folder = get_checkpoint_folder(one.state_folder, lock)
    checkpoint(folder, 3, 3, "\n".join(f'{{"orders":{{"0":{end},"1":7}}}}' for end in ends))
    group = FakeCluster({A: 10, B: 7})
    with pytest.raises(ResetError, match=r"orders-0 have reached different offsets \(10, 50\), .* --available-now"):
        planned(one, lock, "committed", group)
    assert planned(one, lock, "earliest", group).lock.start == {name: {A: 5, B: 0} for name in one.sources}
    assert list(plan_start(one, None, group, 600_000).starts) == []

    shutil.rmtree(folder)
    checkpoint(folder, 3, 3, '{"orders":{"0":50,"1":7}}\n{"orders":{"0":50,"1":7}}')
    assert planned(one, lock, "committed", group).lock.start == {name: {A: 50, B: 7} for name in one.sources}


@pytest.mark.parametrize(("text", "is_doubtful"), [(SOURCE + TOPIC, False), (SOURCE + CONSOLE, True)])
def test_a_damaged_checkpoint(tmp_path, text, is_doubtful):
    """The remedy is a reset."""
    one, lock = begun(tmp_path, text)
    (get_checkpoint_folder(one.state_folder, lock) / "offsets" / "3").write_text("")
    group = FakeCluster({A: 30, B: 7})
    with pytest.raises(RefusedError, match=r"offsets/3 has version .*; restore it from a backup, or reset --to comm"):
        plan_start(one, None, group, 600_000)
    reset = planned(one, lock, "committed", group)
    assert reset.lock.start == {"orders": {A: 30, B: 7}}
    assert any("offsets/3 has version" in said for said in reset.sentences) == is_doubtful
    assert planned(one, lock, "earliest", group).lock.start == {"orders": {A: 5, B: 0}}


def test_a_reset_has_a_later_generation_than_a_state_that_was_lost_just_now(tmp_path):
    """Otherwise batches of the lost state would count as batches of this one."""
    one = pipeline(SOURCE + CONSOLE, folder=tmp_path)
    lost = plan_start(one, None, FakeCluster(), 600_000).lock
    assert planned(one, None, "earliest", FakeCluster()).lock.generation > lost.generation


def test_a_reset_has_a_later_generation_than_a_copy_that_was_created_just_now(tmp_path):
    """Otherwise the batches of the copy would count as later than the reset, which would be refused."""
    one, two = (pipeline(SOURCE + CONSOLE, folder=tmp_path / name) for name in "ab")
    earlier = plan_start(two, None, FakeCluster(), 540_000).lock
    copy = plan_start(one, None, FakeCluster(), 600_000).lock
    assert planned(two, earlier, "earliest", FakeCluster()).lock.generation > copy.generation


def test_reset_to_committed_in_the_middle_of_a_batch(tmp_path):
    sink = '[sink]\nconnector = "files"\npath = "out"\nformat = "json"\n'
    one, lock = begun(tmp_path, SOURCE + sink, planned=4, done=3)
    assert "a batch is incomplete" in planned(one, lock, "committed", FakeCluster()).sentences[-1]


def test_an_incomplete_batch_without_all_markers(tmp_path):
    """The markers of offset transactions show whether the batch is written."""
    one, lock = begun(tmp_path, SOURCE + TOPIC, planned=4, done=3)
    [said] = planned(one, lock, "committed", FakeCluster({A: 30, B: 7})).sentences
    assert said == "source orders continues at its current position"
    assert "a batch is incomplete" in planned(one, lock, "committed", FakeCluster({B: 7})).sentences[-1]


def test_reset_to_a_time(tmp_path):
    one, lock = begun(tmp_path, SOURCE + COUNTS + CONSOLE + '[errors]\ndeadletterqueue.topic.name = "dlq"\n')
    assert planned(one, lock, 45, FakeCluster()).sentences == (
        "source orders skips 17 records, which will not be read",
        "Spark's state (windows, aggregates, joins) is discarded",
    )
    assert "dead letters among them are written a second time" in planned(one, lock, 6, FakeCluster()).sentences


def test_a_reset_with_an_upsert_replaces_rows(tmp_path):
    sink = (
        '[sink]\nconnector = "jdbc"\nconnection.url = "jdbc:x"\ntable.name.format = "sales"\n'
        'insert.mode = "upsert"\npk.fields = "id"\n'
    )
    one, lock = begun(tmp_path, SOURCE + sink)
    sentences = planned(one, lock, "earliest", FakeCluster()).sentences
    assert "rows of sales are replaced by rows with the same id" in sentences


def test_sources_without_topics_are_only_reset_to_earliest(tmp_path):
    one = pipeline('name = "orders"\n[source.g]\nconnector = "generator"\n' + CONSOLE, folder=tmp_path)
    with pytest.raises(ResetError, match="g cannot be reset to committed, only topics can"):
        planned(one, None, "committed", FakeCluster())
    assert planned(one, None, "earliest", FakeCluster()).sentences == (
        "source g is read again from the beginning",
        "their rows are written a second time; existing rows stay in the sink",
    )


def test_a_reset_that_is_interrupted_is_finished_later(tmp_path):
    one, lock = begun(tmp_path, SOURCE + TOPIC)
    group = FakeCluster({A: 30, B: 7})
    group.fails = True
    with pytest.raises(ClusterError):
        execute_plan(one, planned(one, lock, "earliest", group), group)
    pending = read_lock(one.state_folder)
    assert pending is not None and pending.is_pending and pending.generation == 11
    assert any("a reset was started" in line for line in describe_state(read_state(one, pending)))
    group.fails = False
    finished = finish_reset(one, pending, group)
    assert finished == read_lock(one.state_folder) == replace(pending, is_pending=False)
    assert group.offsets == {A: 5, B: 0}
    assert finish_reset(one, finished, StubCluster()) == finished and finished.generation == 11


def test_a_reset_after_one_that_was_interrupted_keeps_the_position(tmp_path):
    sink = '[sink]\nconnector = "files"\npath = "out"\nformat = "json"\n'
    one, lock = begun(tmp_path, SOURCE + sink)
    group = FakeCluster({A: 20})
    group.fails = True
    with pytest.raises(ClusterError):
        execute_plan(one, planned(one, lock, "committed", group), group)
    again = planned(one, read_lock(one.state_folder), "committed", group)
    assert again.lock.start == {"orders": {A: 30, B: 7}} and again.lock.generation == 12


def test_generations_grow_even_when_time_does_not(tmp_path):
    one, lock = begun(tmp_path, SOURCE + TOPIC)
    assert planned(one, replace(lock, generation=99), "earliest", FakeCluster()).lock.generation == 100


def test_status(tmp_path):
    one, lock = begun(tmp_path, SOURCE + TOPIC, planned=4, done=3)
    progress = Progress(
        batch=3, at_ms=0, read=1100, written=1090, dead_lettered=9, dropped=1, rows_per_second=51234.5,
        last_error="sink is down", last_error_at_ms=1000,
    )  # fmt: skip
    write_progress(one.state_folder, progress)
    assert list(describe_state(read_state(one, lock))) == [
        "orders: stopped",
        "  batch 4, started 1970-01-01T00:00:01Z, is not completed; last completed: batch 3",
        "  this run, up to 1970-01-01T00:00:00Z: 1,100 read = 1,090 written + 9 dead letters + 1 dropped; "
        "51,234 rows/s",
        "  last error at 1970-01-01T00:00:01Z: sink is down",
    ]
    write_progress(one.state_folder, replace(progress, written=12))
    [line] = [line for line in describe_state(read_state(one, lock)) if "read" in line]
    assert "1,100 read, 12 written, 9 dead letters, 1 dropped" in line
    assert list(describe_lags(fetch_lags(one, lock, FakeCluster({A: 30})))) == [
        "  source orders: lag 22",
        "    TOPIC   PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CHECKPOINT",
        "    orders  0          30              50              20   30",
        "    orders  1          -               9               2    7",
    ]


def test_status_of_a_pipeline_that_has_never_run(tmp_path):
    one = pipeline(SOURCE + TOPIC, folder=tmp_path)
    assert list(describe_state(read_state(one, None))) == ["orders: stopped, has never run"]
    assert next(describe_lags(fetch_lags(one, None, FakeCluster()))) == "  source orders: lag 54"


def test_status_of_a_pipeline_that_will_not_run(tmp_path):
    _, lock = begun(tmp_path, SOURCE + TOPIC)
    other = pipeline(SOURCE + TOPIC.replace("out", "there"), folder=tmp_path)
    assert list(describe_state(read_state(other, lock)))[2:] == [
        "  will not run: the sink writes to another place: the batches that the checkpoint records are missing there; "
        "revert the change, or reset --to committed or reset --to earliest"
    ]
