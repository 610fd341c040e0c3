"""Each kind of violation of a transaction, a poll, a group or a copy, and similar histories without one."""

import pytest

from odradek.simulation.history import Copy, CrashKind, Guarantee, Outcome, SentRecord, copied_value
from odradek.simulation.tests.story import RC, RU, A, B, Story


@pytest.fixture
def story():
    return Story()


def test_a_committed_transaction(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.send("y", 0, txn=txn, partition=B)
    story.commit(txn)
    story.poll(0, "x -", isolation=RC)
    story.end("x -")
    story.end("y -", partition=B)
    assert story.found() == set()


def test_an_aborted_transaction(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.abort(txn)
    story.poll(0, "- -", isolation=RC)
    story.poll(0, "x -", assignment="c2")
    story.end("x -", "- -")
    assert story.found() == set()


def test_an_aborted_read_at_the_end(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.abort(txn)
    story.end("x -")
    assert story.found() == {"ABORTED_READ"}


def test_an_aborted_read_by_a_poll(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.abort(txn)
    story.poll(0, "x -", isolation=RC)
    story.end("x -", "- -")
    assert "ABORTED_READ" in story.found()


def test_an_abandoned_transaction_is_never_seen(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.end("x -")
    assert story.found() == {"ABORTED_READ"}


@pytest.mark.parametrize("committed", ["x -", "- -"])
def test_a_commit_of_unknown_outcome_may_be_either(story, committed):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.commit(txn, Outcome.UNKNOWN)
    story.end("x -", committed)
    assert story.found() == set()


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN])
def test_a_torn_transaction(story, outcome):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.send("y", 0, txn=txn, partition=B)
    story.commit(txn, outcome)
    story.end("x -")
    story.end("y -", "- -", partition=B)
    assert story.found() == {"TORN_TRANSACTION"}


def test_a_torn_transaction_within_a_partition(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.send("y", 1, txn=txn)
    story.commit(txn)
    story.end("x y -", "x - -")
    assert story.found() == {"TORN_TRANSACTION"}


def test_a_committed_transaction_that_is_not_seen(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.commit(txn)
    story.end("x -", "- -")
    assert story.found() == {"LOST_TRANSACTION"}


def test_a_power_loss_may_tear_a_transaction_that_was_not_flushed(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.send("y", 0, txn=txn, partition=B)
    story.commit(txn)
    story.crash()
    story.end("x -")
    story.end("y", "-", partition=B)
    assert story.found() == set()


def test_a_power_loss_tears_no_transaction_that_was_flushed():
    story = Story(flush_before_acks=True)
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.send("y", 0, txn=txn, partition=B)
    story.commit(txn)
    story.crash()
    story.end("x -")
    story.end("y -", "- -", partition=B)
    assert story.found() == {"TORN_TRANSACTION"}


def test_a_transaction_left_open(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.end("x", "-", lso=0)
    assert story.found() == {"HANGING_TRANSACTION"}


def test_after_a_power_loss_producer_epochs_may_be_allocated_again(story):
    story.send("x", 0, txn=story.begin())
    story.crash()
    txn = story.begin()
    story.send("y", 0, txn=txn, producer="t#2")
    story.commit(txn)
    story.end("x -", "- -")
    assert story.found() == set()


def test_records_behind_an_open_transaction_from_before_a_power_loss_are_out_of_reach(story):
    story.send("x", 0, txn=story.begin())
    story.crash()
    txn = story.begin()
    story.send("y", 1, txn=txn)
    story.send("z", 0, txn=txn, partition=B)
    story.commit(txn)
    story.end("x y -", "", lso=0)
    story.end("z -", partition=B)
    assert story.found() == set()


def test_a_dirty_read(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.poll(0, "x", isolation=RC)
    story.commit(txn)
    story.end("x -")
    assert "DIRTY_READ" in story.found()


def test_a_read_while_the_commit_is_in_progress(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    poll = story.start_poll(0, "x", isolation=RC)
    story.history.request_commit(txn)
    story.history.record_poll(poll)
    story.history.end_transaction(txn, Outcome.OK)
    story.end("x -")
    assert story.found() == set()


def test_a_poll_that_goes_past_an_open_transaction(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.send("y", 1, producer="q")
    story.poll(0, "- y", isolation=RC)
    story.commit(txn)
    story.end("x y -")
    assert "DIRTY_READ" in story.found()


def test_a_poll_that_stops_before_an_open_transaction(story):
    story.send("y", 0, producer="q")
    txn = story.begin()
    story.send("x", 1, txn=txn)
    story.poll(0, "y", isolation=RC, hw=2, lso=1)
    story.commit(txn)
    story.end("y x -")
    assert story.found() == set()


def test_a_poll_past_a_transaction_of_unknown_outcome_that_was_aborted_meanwhile(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.poll(0, "- -", isolation=RC)
    story.commit(txn, Outcome.UNKNOWN)
    story.end("x -", "- -")
    assert story.found() == set()


@pytest.mark.parametrize(("isolation", "bounds"), [("RU", {"hw": 1}), ("RC", {"hw": 2, "lso": 1}), ("RC", {"hw": 1})])
def test_a_poll_beyond_its_bound(story, isolation, bounds):
    story.send("x y", 0)
    options = {"isolation": RC} if isolation == "RC" else {}
    story.poll(0, "x y", **options, **bounds)
    story.end("x y")
    assert story.found() == {"BEYOND_BOUND"}


def test_a_poll_that_skips_a_record(story):
    story.send("x y z", 0)
    story.poll(0, "x - z")
    story.end("x y z")
    assert story.found() == {"SKIPPED"}


def test_a_poll_that_moves_past_records_at_its_end(story):
    story.send("x y", 0)
    story.poll(0, "x -")
    story.end("x y")
    assert story.found() == {"SKIPPED"}


@pytest.mark.parametrize(
    ("kind", "key", "found"),
    [
        (CrashKind.POWER_LOSS, b"kx", set()),
        (CrashKind.POWER_LOSS, b"kz", {"SKIPPED"}),
        (CrashKind.PROCESS_KILL, b"kx", set()),
        (CrashKind.PROCESS_KILL, b"kz", {"SKIPPED"}),
        (None, b"kx", {"SKIPPED"}),
    ],
)
def test_a_poll_of_a_compacted_segment_that_a_crash_replaces_by_the_old_one(kind, key, found):
    story = Story(compacted=frozenset({"a"}), flush_before_acks=True)
    send = story.send("x y z", 0)
    send.records = (*send.records[:2], send.records[2]._replace(key=key))
    story.poll(0, "- y", hw=3)
    if kind is not None:
        story.crash(kind)
    story.end("x y z")
    for isolation in (RU, RC):
        log = story.final.logs[A, isolation]
        log.records = (*log.records[:2], log.records[2]._replace(key=key))
    assert story.found() == found


def test_a_poll_that_stops_early(story):
    story.send("x y", 0)
    story.poll(0, "x")
    story.poll(1, "y")
    story.end("x y")
    assert story.found() == set()


def test_a_poll_that_starts_behind_the_one_before(story):
    story.send("x y z", 0)
    story.poll(0, "x")
    story.poll(2, "z")
    story.end("x y z")
    assert story.found() == {"SKIPPED"}


def test_a_poll_that_goes_back(story):
    story.send("x y", 0)
    story.poll(0, "x y")
    story.poll(1, "y")
    story.end("x y")
    assert story.found() == {"POLL_ORDER"}


def test_another_assignment_may_start_anywhere(story):
    story.send("x y", 0)
    story.poll(0, "x y")
    story.poll(1, "y", assignment="c2")
    story.end("x y")
    assert story.found() == set()


def test_a_poll_of_a_record_that_is_gone(story):
    story.send("x y")
    story.poll(0, "x y")
    story.end("x")
    assert story.found() == {"LOST_WRITE"}


def test_a_committed_reader_that_does_not_receive_a_plain_record(story):
    story.send("x y", 0)
    story.end("x y", "x -")
    assert "SKIPPED" in story.found()


def test_a_committed_offset_that_goes_back(story):
    story.send("x y", 0)
    story.poll(0, "x y", group="g")
    story.commit_offset(2)
    story.fetch_offset(-1)
    story.end("x y")
    assert story.found() == {"OFFSET_BACK"}


def test_an_older_offset_is_returned_after_a_newer_one_was_acknowledged(story):
    story.commit_offset(1)
    story.commit_offset(2)
    story.fetch_offset(1)
    assert story.found() == {"OFFSET_BACK"}


def test_an_older_offset_may_be_that_of_an_attempt_without_a_response(story):
    story.commit_offset(1, lost=1)
    story.commit_offset(2)
    story.fetch_offset(1)
    assert story.found() == set()


def test_a_commit_of_unknown_outcome_counts_or_not(story):
    story.commit_offset(1)
    story.commit_offset(2, Outcome.UNKNOWN)
    story.fetch_offset(1)
    story.fetch_offset(2)
    assert story.found() == set()


def test_a_refused_commit_does_not_count(story):
    story.commit_offset(1)
    story.commit_offset(2, Outcome.FAILED)
    story.fetch_offset(2)
    assert story.found() == {"OFFSET_INVENTED"}


def test_a_commit_that_was_accepted_behind_another(story):
    story.commit_offset(2, generation=2)
    story.commit_offset(1, generation=1)
    assert story.found() == {"OFFSET_BACK"}


def test_the_last_offset_is_lost_at_the_end(story):
    story.commit_offset(1)
    story.final.offsets["g", A] = -1
    story.end("")
    assert story.found() == {"OFFSET_BACK"}


def test_an_offset_may_go_back_in_a_power_loss(story):
    story.commit_offset(2)
    story.crash()
    story.fetch_offset(-1)
    story.commit_offset(1)
    assert story.found() == set()


def test_a_position_from_before_a_power_loss_may_be_committed_after_it(story):
    story.crash()
    story.commit_offset(2)
    story.commit_offset(1)
    assert story.found() == set()


def test_a_position_that_was_read_since_the_power_loss_counts(story):
    story.crash()
    story.send("x y", 0)
    story.poll(0, "x y", group="g")
    story.commit_offset(2)
    story.commit_offset(1)
    story.end("x y")
    assert story.found() == {"OFFSET_BACK"}


def test_an_offset_of_an_aborted_transaction(story):
    txn = story.begin()
    story.commit_offset(2, txn=txn)
    story.abort(txn)
    story.fetch_offset(2)
    assert story.found() == {"OFFSET_INVENTED"}


def test_an_offset_of_an_open_transaction(story):
    txn = story.begin()
    story.commit_offset(2, txn=txn)
    story.fetch_offset(2)
    story.commit(txn)
    assert story.found() == {"OFFSET_INVENTED"}


def test_an_offset_of_a_committed_transaction(story):
    txn = story.begin()
    story.commit_offset(2, txn=txn)
    story.commit(txn)
    story.fetch_offset(2)
    assert story.found() == set()


def test_an_offset_of_a_committed_transaction_that_is_lost(story):
    txn = story.begin()
    story.commit_offset(2, txn=txn)
    story.commit(txn)
    story.fetch_offset(-1)
    assert story.found() == {"OFFSET_BACK"}


def test_an_unstable_fetch_may_come_before_the_marker(story):
    txn = story.begin()
    story.commit_offset(2, txn=txn)
    story.commit(txn)
    story.fetch_offset(-1, stable=False)
    assert story.found() == set()


def test_an_offset_of_a_torn_transaction(story):
    txn = story.begin()
    story.send("x", 0, txn=txn)
    story.commit_offset(2, txn=txn)
    story.commit(txn, Outcome.UNKNOWN)
    story.fetch_offset(2)
    story.end("x -", "- -")
    assert story.found() == {"OFFSET_INVENTED"}


def test_a_commit_past_the_records_that_members_received(story):
    story.send("x y", 0)
    story.poll(0, "x", group="g")
    story.commit_offset(2)
    story.final.offsets["g", A] = 2
    story.end("x y")
    assert story.found() == {"UNREAD_COMMIT"}


def test_a_commit_of_records_that_two_members_received(story):
    story.send("x y", 0)
    story.poll(0, "x", group="g")
    story.poll(1, "y", group="g", assignment="c2")
    story.commit_offset(2)
    story.final.offsets["g", A] = 2
    story.end("x y")
    assert story.found() == set()


def test_two_owners(story):
    story.history.record_assignment("c1", story.history.moment(), "g", 1, "m1", [A, B])
    story.history.record_assignment("c2", story.history.moment(), "g", 1, "m2", [B])
    assert story.found() == {"TWO_OWNERS"}


def test_one_owner_after_another(story):
    story.history.record_assignment("c1", story.history.moment(), "g", 1, "m1", [A, B])
    story.history.record_assignment("c1", story.history.moment(), "g", 2, "m1", [A])
    story.history.record_assignment("c2", story.history.moment(), "g", 2, "m2", [B])
    assert story.found() == set()


def copier(story, copies, committed, inputs="x y"):
    """Inputs in A, copies of the given offsets in B; `committed` is the group's offset."""
    story.history.copies.append(Copy("g", (A,), (B,)))
    story.send(inputs, 0)
    story.end(inputs)
    words = inputs.split()
    txn = story.begin()
    records = [
        SentRecord(copied_value(b"c%d" % number, A, offset, words[offset].encode()), None, (), 1)
        for number, offset in enumerate(copies)
    ]
    if records:
        send = story.history.begin_send("p", B, "copier", Guarantee.TRANSACTIONAL, records, transaction=txn)
        story.history.attempt_send(send)
        story.history.end_send(send, Outcome.OK, 0)
    story.commit_offset(committed, txn=txn)
    story.commit(txn)
    story.end("", partition=B)
    for log in (story.final.logs[key] for key in list(story.final.logs) if key[0] == B):
        log.records = tuple(story.records([record.value.decode() for record in records]))
        log.records = tuple(
            read._replace(key=None, headers=(), timestamp=1) for read in log.records
        )
        log.end_offset = log.high_watermark = len(records) + 1
    story.final.offsets["g", A] = committed
    return story.found()


@pytest.mark.parametrize(
    ("copies", "committed", "found"),
    [
        ([0, 1], 2, set()),
        ([0], 1, set()),
        ([0], 2, {"COPY_MISSING"}),
        ([0, 0, 1], 2, {"COPY_DUPLICATE"}),
        ([0, 1], 1, {"COPY_UNCOMMITTED"}),
    ],
)
def test_copies(story, copies, committed, found):
    assert copier(story, copies, committed) == found
