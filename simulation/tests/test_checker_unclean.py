"""Topics with unclean elections: records may be lost at such an election only, and only those its leader lacked."""

import pytest

from odradek.simulation.history import Outcome
from odradek.simulation.tests.story import A, Story
from odradek.simulation.unclean_elections import UncleanElection


@pytest.fixture
def story():
    return Story(unclean=frozenset({"a"}), is_cluster=True)


def elect(story, kept_end, *, partition=A, is_settled=True):
    history = story.history
    election = UncleanElection(partition, 5, history.moment(), kept_end)
    if is_settled:
        election.settled = election.truncated = history.moment()
    history.unclean_elections.append(election)
    return election


def in_epoch(records, epoch):
    return tuple(record._replace(leader_epoch=epoch) for record in records)


def test_records_are_kept_without_an_election(story):
    story.send("x y", 0)
    story.end("x")
    assert story.found() == {"LOST_WRITE"}


def test_the_leader_of_an_unclean_election_may_lack_records(story):
    story.send("x", 0)
    story.send("y", 1)
    story.poll(0, "x y")
    elect(story, 1)
    story.end("x")
    assert story.found() == set()


def test_it_keeps_the_records_that_it_has(story):
    story.send("x", 0)
    story.send("y", 1)
    elect(story, 1)
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_an_election_of_another_partition_loses_nothing(story):
    story.send("x", 0)
    elect(story, 0, partition=("a", 1))
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_a_later_record_is_kept(story):
    elect(story, 0)
    story.send("x", 0)
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_a_leader_that_was_replaced_without_its_notice_writes_records_that_are_lost(story):
    election = elect(story, 0, is_settled=False)
    story.send("x", 0)
    election.settled = story.history.moment()
    story.end("")
    assert story.found() == set()


def test_a_follower_returns_lost_records_until_it_has_truncated_its_log(story):
    story.send("x")
    election = elect(story, 0, is_settled=False)
    election.settled = story.history.moment()
    story.poll(0, "x")
    election.truncated = story.history.moment()
    story.end("")
    assert story.found() == set()
    story.poll(0, "x")
    assert story.found() == {"LOST_WRITE"}


def test_an_acknowledgement_without_an_offset(story):
    story.send("x", -1, outcome=Outcome.OK)
    story.end("x")
    assert story.found() == set()
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_a_record_that_was_read_is_kept(story):
    story.send("x")
    story.poll(0, "x")
    story.end("")
    assert story.found() == {"LOST_WRITE"}


def test_an_offset_has_one_value_in_each_leader_epoch(story):
    story.send("x")
    story.send("y")
    elect(story, 0, is_settled=False)
    poll = story.start_poll(0, "x")
    poll.records = in_epoch(poll.records, 4)
    story.history.record_poll(poll)
    story.end("y")
    for log in story.final.logs.values():
        log.records = in_epoch(log.records, 5)
    assert story.found() == set()
    for log in story.final.logs.values():
        log.records = in_epoch(log.records, 4)
    assert story.found() == {"TWO_VALUES"}


def test_a_record_is_in_the_log_once(story):
    story.send("x", 0, attempts=2)
    story.end("x x")
    assert story.found() == {"DUPLICATE"}


def test_two_elections_may_lead_to_two_copies(story):
    story.send("x", 0, attempts=2)
    elect(story, 0)
    elect(story, 0)
    story.end("x x")
    assert story.found() == set()


@pytest.mark.parametrize(("elections", "found"), [(1, {"DUPLICATE", "REORDERED"}), (2, set())])
def test_a_second_copy_may_follow_later_records_after_two_elections(story, elections, found):
    story.send("x", 2, attempts=2)
    story.send("y", 3, attempts=2)
    for _ in range(elections):
        elect(story, 0)
    story.end("x y x y")
    assert story.found() == found


def test_a_plain_producer_may_write_as_often_as_it_tries(story):
    story.send("x", 0, attempts=2, kind="plain")
    story.end("x x")
    assert story.found() == set()


def test_order_and_contents_are_those_of_the_producer(story):
    story.send("x", 1)
    story.send("y", 0)
    story.end("y x")
    assert story.found() == {"REORDERED"}
    story.end("z")
    assert "UNKNOWN_VALUE" in story.found()


def test_a_read_ends_below_the_high_watermark(story):
    story.send("x", 0)
    story.poll(0, "x", hw=0)
    story.end("x")
    assert story.found() == {"BEYOND_BOUND"}


def test_a_partition_must_be_readable_at_the_end(story):
    story.send("x", 0)
    assert story.found() == {"UNREADABLE"}


def test_other_topics_keep_their_guarantees(story):
    elect(story, 0, partition=("b", 0))
    story.send("x", 0, partition=("b", 0))
    story.end("", partition=("b", 0))
    assert story.found() == {"LOST_WRITE"}
