"""Violations around timestamps, retention, deleted records and deleted topics, each in a small history."""

from dataclasses import replace

import pytest

from odradek.simulation.history import LARGEST, CrashKind, FinalLog, Lookup, Outcome
from odradek.simulation.tests.story import RC, RU, A, Story

FIRST, SECOND = ("t#1", 0), ("t#2", 0)


@pytest.fixture
def story():
    return Story()


def create(story, number, topic="t"):
    return story.history.topics.begin("o", topic, bytes([number]) * 16, 1)


def delete(story, life):
    story.history.topics.request_deletion("o", life)
    story.history.topics.end("o", life)


def list_topic(story, number, topic="t"):
    story.history.topics.listed("o", story.history.moment(), topic, bytes([number]) * 16 if number else None)


def delete_records(story, offset, answered=True, partition=A):
    deletion = story.history.topics.begin_deletion("o", partition, offset)
    if answered:
        story.history.topics.end_deletion(deletion, offset)


def end_at(story, words, start, partition=A):
    """Set the final log from an offset on."""
    for isolation in (RU, RC):
        records = story.records(words.split(), start)
        end = start + len(records)
        story.final.logs[partition, isolation] = FinalLog(records, end, end, start)


# Lookups


STAMPS = ((0, 5), (1, 9), (2, 9), (3, -1))


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        (LARGEST, [(1, 9), (2, 9)], [(-1, -1), (0, 5), (3, 9), (1, 10)]),
        (0, [(0, 5)], [(1, 9), (-1, -1)]),
        (6, [(1, 9)], [(2, 9), (0, 5)]),
        (10, [(-1, -1)], [(2, 9)]),
    ],
)
def test_a_lookup_follows_from_the_records(story, wanted, right, wrong):
    story.send("w x y z", 0)
    story.end("w x y z")
    story.final.logs[A, RU].stamps = STAMPS
    for answers, found in ((right, set()), (wrong, {"WRONG_LOOKUP"})):
        for offset, timestamp in answers:
            story.final.lookups = [Lookup(A, wanted, offset, timestamp)]
            assert story.found() == found


def test_without_timestamps_the_largest_is_none_at_any_record(story):
    story.send("x", 0)
    story.end("x")
    story.final.logs[A, RU].stamps = ((0, -1),)
    story.final.lookups = [Lookup(A, LARGEST, 0, -1), Lookup(A, LARGEST, -1, -1)]
    assert story.found() == set()


# Retention and deleted records


@pytest.mark.parametrize(("age_ms", "found"), [(500, {"LOST_WRITE"}), (2000, set())])
def test_retention_removes_old_records_only(age_ms, found):
    story = Story(aged=frozenset({"a"}), retention_ms=1000)
    story.history._now_ms = lambda: 1000 + age_ms
    story.send("x y", 0)
    story.poll(0, "x y")
    end_at(story, "y", 1)
    assert story.found() == found


@pytest.mark.parametrize(("age_ms", "found"), [(500, {"SKIPPED"}), (2000, set())])
def test_retention_may_remove_old_records_between_the_final_reads(age_ms, found):
    story = Story(aged=frozenset({"a"}), retention_ms=1000)
    story.history._now_ms = lambda: 1000 + age_ms
    story.send("x y", 0)
    story.end("x y")
    committed = story.final.logs[A, RC]
    story.final.logs[A, RC] = replace(committed, records=committed.records[1:], start_offset=1)
    assert story.found() == found


def test_retention_removes_nothing_of_another_topic():
    story = Story(aged=frozenset({"b"}), retention_ms=1000)
    story.history._now_ms = lambda: 100_000
    story.send("x y", 0)
    end_at(story, "y", 1)
    assert story.found() == {"LOST_WRITE"}


@pytest.mark.parametrize("answered", [True, False])
def test_deleted_records_may_be_gone(story, answered):
    story.send("x y z", 0)
    story.poll(0, "x y z")
    delete_records(story, 2, answered)
    end_at(story, "z", 2)
    assert story.found() == set()


def test_no_others_than_the_deleted_records_may_be_gone(story):
    story.send("x y z", 0)
    delete_records(story, 1)
    end_at(story, "z", 2)
    assert story.found() == {"LOST_WRITE"}


@pytest.mark.parametrize(
    ("kind", "found"), [(CrashKind.PROCESS_KILL, {"DELETION_UNDONE"}), (CrashKind.POWER_LOSS, set())]
)
def test_deleted_records_are_not_back_after_a_kill(story, kind, found):
    create(story, 1)
    story.send("x y", 0, partition=FIRST)
    delete_records(story, 1, partition=FIRST)
    story.crash(kind)
    end_at(story, "x y", 0, FIRST)
    assert story.found() == found


def test_records_whose_deletion_was_not_acknowledged_may_be_back(story):
    create(story, 1)
    story.send("x y", 0, partition=FIRST)
    delete_records(story, 1, answered=False, partition=FIRST)
    end_at(story, "x y", 0, FIRST)
    assert story.found() == set()


# Topics


def test_a_deleted_topic_is_not_read_at_the_end(story):
    life = create(story, 1)
    story.send("x", 0, partition=FIRST)
    assert story.found() == {"UNREADABLE"}
    delete(story, life)
    assert story.found() == set()


def test_a_deleted_topic_is_back(story):
    life = create(story, 1)
    list_topic(story, 1)
    delete(story, life)
    list_topic(story, None)
    assert story.found() == set()
    list_topic(story, 1)
    assert story.found() == {"RESURRECTED"}


def test_a_topic_whose_deletion_was_not_acknowledged_may_be_there(story):
    story.history.topics.request_deletion("o", create(story, 1))
    list_topic(story, 1)
    assert story.found() == set()


def test_the_loss_of_the_store_may_lose_deletions(story):
    delete(story, create(story, 1))
    story.history.lose_store()
    list_topic(story, 1)
    assert story.found() == set()


def test_a_topic_that_was_never_created(story):
    list_topic(story, 1, "notes")
    assert story.found() == {"FOREIGN_TOPIC"}


def test_a_topic_has_the_id_of_its_predecessor(story):
    delete(story, create(story, 1))
    create(story, 2)
    assert story.found() == set()
    create(story, 1, "other")
    assert story.found() == {"REUSED_ID"}


def test_a_topic_has_a_record_of_its_predecessor(story):
    life = create(story, 1)
    story.send("x", 0, partition=FIRST)
    delete(story, life)
    create(story, 2)
    end_at(story, "x", 0, SECOND)
    assert story.found() == {"ALTERED_RECORD"}


def test_a_topic_has_an_offset_of_its_predecessor(story):
    life = create(story, 1)
    commit = story.history.begin_commit("o", "g", FIRST, 7)
    story.history.end_commit(commit, Outcome.OK)
    delete(story, life)
    create(story, 2)
    end_at(story, "", 0, SECOND)
    story.history.record_fetch("o", story.history.moment(), "g", SECOND, -1, stable=True)
    assert story.found() == set()
    story.history.record_fetch("o", story.history.moment(), "g", SECOND, 7, stable=True)
    assert story.found() == {"OFFSET_INVENTED"}


def test_offsets_of_a_deleted_topic_are_left_only_if_the_disk_refused_something(story):
    life = create(story, 1)
    commit = story.history.begin_commit("o", "g", FIRST, 7)
    story.history.end_commit(commit, Outcome.OK)
    delete(story, life)
    story.final.offsets["g", ("t", 0)] = 7
    assert story.found() == {"OFFSET_INVENTED"}
    story.history.has_unfinished_end = True
    assert story.found() == set()


def test_after_the_loss_of_the_store_offsets_may_be_those_of_the_predecessor(story):
    life = create(story, 1)
    commit = story.history.begin_commit("o", "g", FIRST, 7)
    story.history.end_commit(commit, Outcome.OK)
    delete(story, life)
    create(story, 2)
    end_at(story, "", 0, SECOND)
    story.history.lose_store()
    story.history.record_fetch("o", story.history.moment(), "g", SECOND, 7, stable=True)
    assert story.found() == {"OFFSET_INVENTED"}
    story.history.has_unfinished_end = True
    assert story.found() == set()


def test_a_topic_of_an_owner_survives_a_power_loss():
    story = Story(overrides={"t": True})
    create(story, 1)
    story.send("x", 0, partition=FIRST)
    story.crash()
    end_at(story, "", 0, FIRST)
    assert story.found() == {"LOST_WRITE"}


@pytest.mark.parametrize("failed", [RU, RC])
def test_polls_of_a_deleted_topic_are_not_compared_with_a_last_read_that_failed(failed):
    """An owner reads a topic in both isolation levels before it deletes it."""
    story = Story()
    life = create(story, 1)
    story.send("x", 0, partition=FIRST)
    story.poll(0, "x", partition=FIRST, isolation=failed)
    delete(story, life)
    story.end("x", partition=FIRST)
    del story.final.logs[FIRST, failed]
    assert story.found() == set()


# Compaction and transactions


def test_an_aborted_record_supersedes_nothing():
    story = Story(compacted=frozenset({"a"}))
    story.send("x", 0)
    txn = story.begin()
    send = story.send("y", 1, txn=txn)
    story.abort(txn)
    send.records = (send.records[0]._replace(key=b"kx"),)
    aborted = story.records(["-", "y"])[0]._replace(key=b"kx")
    story.final.logs[A, RU] = FinalLog((aborted,), 3, 3)
    story.final.logs[A, RC] = FinalLog((), 3, 3)
    assert story.found() == {"LOST_WRITE"}


def test_a_superseded_committed_record_may_be_missing():
    story = Story(compacted=frozenset({"a"}))
    txn = story.begin()
    first = story.send("x", 0, txn=txn)
    story.commit(txn)
    second = story.send("y", 2)
    second.records = (second.records[0]._replace(key=first.records[0].key),)
    read = story.records(["y"], 2)[0]._replace(key=first.records[0].key)
    for isolation in (RU, RC):
        story.final.logs[A, isolation] = FinalLog((read,), 3, 3)
    assert story.found() == set()
    for isolation in (RU, RC):
        story.final.logs[A, isolation] = FinalLog((), 3, 3)
    assert "LOST_TRANSACTION" in story.found()
