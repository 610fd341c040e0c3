"""Each kind of violation in one log: it is found in a minimal history with it, and not in a similar one without it."""

import pytest

from odradek.simulation.history import CrashKind, Guarantee, Outcome, ReadRecord, SentRecord
from odradek.simulation.tests.story import RC, RU, A, B, Story, read


@pytest.fixture
def story():
    return Story()


def test_records_that_were_sent_and_read_are_correct(story):
    story.send("x y", 0)
    story.poll(0, "x y")
    story.end("x y")
    assert story.found() == set()


def test_a_lost_acknowledged_write(story):
    story.send("x y", 0)
    story.send("z", 2)
    story.end("x y")
    assert story.found() == {"LOST_WRITE"}


def test_an_unacknowledged_write_may_be_lost(story):
    story.send("x y", 0)
    story.send("z")
    story.end("x y")
    assert story.found() == set()


def test_a_write_acknowledged_without_an_offset_must_be_there(story):
    story.send("x", -1, outcome=Outcome.OK)
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_an_overwritten_acknowledged_write(story):
    story.send("x", 0)
    story.send("y")
    story.end("y")
    assert story.found() == {"LOST_WRITE", "TWO_VALUES"}


def test_a_write_acknowledged_with_a_wrong_offset(story):
    story.send("x", 1)
    story.send("y")
    story.end("x y")
    assert "WRONG_OFFSET" in story.found()


def test_two_polls_that_saw_different_values(story):
    story.send("x")
    story.send("y")
    story.poll(0, "x")
    story.poll(0, "y", assignment="c2")
    story.end("y")
    assert "TWO_VALUES" in story.found()


def test_a_refused_write_that_is_read(story):
    story.send("x", outcome=Outcome.FAILED)
    story.end("x")
    assert story.found() == {"REFUSED_WRITE"}


def test_a_refused_write_that_is_not_read(story):
    story.send("x", outcome=Outcome.FAILED)
    story.end("")
    assert story.found() == set()


def test_a_value_that_was_never_sent(story):
    story.end("x")
    assert story.found() == {"UNKNOWN_VALUE"}


def test_a_value_in_another_partition(story):
    story.send("x", partition=B)
    story.end("x")
    story.end("", partition=B)
    assert story.found() == {"ALTERED_RECORD"}


@pytest.mark.parametrize("field", ["key", "headers", "timestamp"])
def test_an_altered_record(story, field):
    story.send("x", 0)
    story.end("x")
    altered = read(0, b"x")._replace(**{field: None if field == "key" else 5 if field == "timestamp" else ()})
    story.final.logs[A, RU].records = (altered,)
    assert story.found() == {"ALTERED_RECORD"}


def test_the_timestamp_of_the_broker():
    story = Story(log_append_time=frozenset({"a"}))
    send = story.send("x")
    send.outcome, send.base_offset, send.log_append_time = Outcome.OK, 0, 7
    story.end("x")
    for isolation in (RU, RC):
        story.final.logs[A, isolation].records = (read(0, b"x")._replace(timestamp=7),)
    assert story.found() == set()
    send.log_append_time = 8
    assert story.found() == {"ALTERED_RECORD"}


def answered_across_a_crash(kind):
    """Return a story: a reader gets the record of the first attempt; the second, after a crash, has a later time."""
    story = Story(log_append_time=frozenset({"a"}))
    send = story.send("x")
    story.poll(0, "x")
    story.crash(kind)
    story.history.attempt_send(send)
    send.outcome, send.base_offset, send.log_append_time = Outcome.OK, 0, 1007
    story.end("x")
    for isolation in (RU, RC):
        story.final.logs[A, isolation].records = (read(0, b"x")._replace(timestamp=1007),)
    return story


def test_a_record_that_a_power_loss_removed_is_written_again_with_another_time():
    assert answered_across_a_crash(CrashKind.POWER_LOSS).found() == set()


def test_a_record_that_no_crash_may_remove_keeps_its_time():
    assert answered_across_a_crash(CrashKind.PROCESS_KILL).found() == {"ALTERED_RECORD"}
    story = answered_across_a_crash(CrashKind.POWER_LOSS)
    story.history.settings.flush_before_acks = True
    assert story.found() == {"ALTERED_RECORD"}


def test_a_record_read_after_the_crash_has_the_acknowledged_time():
    story = answered_across_a_crash(CrashKind.POWER_LOSS)
    story.poll(0, "x", assignment="c2")
    assert story.found() == {"ALTERED_RECORD"}


def test_a_partition_that_cannot_be_read(story):
    story.send("x", 0)
    assert story.found() == {"UNREADABLE"}


def test_a_duplicate_of_an_idempotent_producer(story):
    story.send("x", 0, attempts=2)
    story.end("x x")
    assert story.found() == {"DUPLICATE"}


def test_a_plain_producer_may_write_again_with_each_attempt(story):
    story.send("x", 1, kind="plain", attempts=2)
    story.end("x x")
    assert story.found() == set()


def test_a_plain_producer_may_not_write_more_often_than_it_sent(story):
    story.send("x", 1, kind="plain", attempts=2)
    story.end("x x x")
    assert story.found() == {"DUPLICATE"}


def test_a_reordered_idempotent_producer(story):
    story.send("x")
    story.send("y", 0)
    story.end("y x")
    assert story.found() == {"REORDERED"}


def test_the_order_of_two_producers_is_free(story):
    story.send("x", 1)
    story.send("y", 0, producer="q")
    story.end("y x")
    assert story.found() == set()


def test_an_unclean_batch_is_reordered_within(story):
    story.send("x y")
    story.end("y x")
    assert story.found() == {"REORDERED"}


def test_a_power_loss_may_lose_the_tail(story):
    story.send("x", 0)
    story.send("y z", 1)
    story.crash()
    story.send("w", 1)
    story.end("x w")
    assert story.found() == set()


def test_a_process_kill_loses_nothing(story):
    story.send("x", 0)
    story.crash(CrashKind.PROCESS_KILL)
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_a_power_loss_loses_no_record_that_was_flushed_before_its_acknowledgement():
    story = Story(flush_before_acks=True)
    story.send("x", 0)
    story.crash()
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_a_power_loss_may_lose_records_of_a_topic_that_is_not_flushed():
    story = Story(flush_before_acks=True, overrides={"a": False})
    story.send("x", 0)
    story.crash()
    story.end("")
    assert story.found() == set()


def test_records_acknowledged_after_the_power_loss_exist(story):
    story.crash()
    story.send("x", 0)
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_a_power_loss_leaves_no_gap(story):
    story.send("x", 0)
    story.send("y", 1)
    story.crash()
    story.send("w", 0, producer="q")
    story.end("w y")
    assert story.found() == {"HOLE"}


def test_two_values_since_the_power_loss(story):
    story.send("x", 0)
    story.crash()
    story.send("y", 0)
    story.poll(0, "x")
    story.end("y")
    assert "TWO_VALUES" in story.found()


def test_a_poll_before_the_power_loss_may_have_read_lost_records(story):
    story.send("x y", 0)
    story.poll(0, "x y")
    story.crash()
    story.end("x")
    assert story.found() == set()


def test_compaction_may_remove_superseded_records():
    story = Story(compacted=frozenset({"a"}))
    for offset, word in enumerate((b"x", b"y")):
        send = story.history.begin_send("p", A, "p", Guarantee.IDEMPOTENT, [SentRecord(word, b"k", (), 1)])
        story.history.attempt_send(send)
        story.history.end_send(send, Outcome.OK, offset)
    story.end("- -")
    for isolation in (RU, RC):
        story.final.logs[A, isolation].records = (ReadRecord(1, b"y", b"k", (), 1),)
    assert story.found() == set()
    for isolation in (RU, RC):
        story.final.logs[A, isolation].records = (ReadRecord(0, b"x", b"k", (), 1),)
    assert "LOST_WRITE" in story.found()


def test_the_end_goes_back(story):
    story.send("x y", 0)
    story.list_end(2)
    story.list_end(1)
    story.end("x y")
    assert story.found() == {"END_FELL"}


def test_the_end_is_before_acknowledged_records(story):
    story.send("x y", 0)
    story.list_end(1)
    story.end("x y")
    assert story.found() == {"END_FELL"}


def test_the_end_grows_and_the_stable_one_stays_behind(story):
    story.list_end(0)
    story.send("x y", 0)
    story.list_end(2)
    story.list_end(0, RC)
    story.end("x y")
    assert story.found() == set()


def test_the_end_may_go_back_in_a_power_loss(story):
    story.send("x y", 0)
    story.list_end(2)
    story.crash()
    story.list_end(0)
    story.end("")
    assert story.found() == set()


def test_an_odd_answer(story):
    story.history.note_odd("c", "a response to another request")
    assert story.found() == {"INVALID_RESPONSE"}


def test_a_producer_id_belongs_to_one_producer(story):
    for owner in ("p#1", "t", "t"):
        story.history.note_producer_id("p", 7 if owner == "p#1" else 8, 0, owner)
    assert story.found() == set()
    story.history.note_producer_id("q", 7, 1, "p#2")
    assert story.found() == {"SHARED_ID"}
