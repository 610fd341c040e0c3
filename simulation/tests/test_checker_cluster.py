"""Histories of a cluster: brokers that were replaced without their notice return older states until the faults end."""

import pytest

from odradek.simulation.history import CrashKind, Moment
from odradek.simulation.tests.story import RU, A, Story
from odradek.simulation.tests.test_checker_topics import create, delete, delete_records, list_topic
from odradek.simulation.tests.test_checker_transactions import copier
from odradek.simulation.unclean_elections import UncleanElection


@pytest.fixture
def story():
    return Story(is_cluster=True)


def settle(story):
    story.history.settlements.append(story.history.moment())


@pytest.mark.parametrize(("is_settled", "found"), [(False, set()), (True, {"RESURRECTED"})])
def test_a_deleted_topic_may_be_listed_during_faults(story, is_settled, found):
    delete(story, create(story, 1))
    if is_settled:
        settle(story)
    list_topic(story, 1)
    settle(story)
    assert story.found() == found


@pytest.mark.parametrize(("is_settled", "found"), [(False, set()), (True, {"RESURRECTED"})])
def test_a_topic_deleted_after_the_faults_may_be_listed_until_all_brokers_have_removed_it(story, is_settled, found):
    settle(story)
    delete(story, create(story, 1))
    if is_settled:
        settle(story)
    list_topic(story, 1)
    settle(story)
    assert story.found() == found


@pytest.mark.parametrize(("is_settled", "found"), [(False, set()), (True, {"DELETION_UNDONE"})])
def test_a_read_may_begin_before_deleted_records_during_faults(story, is_settled, found):
    story.send("x y z", 0)
    delete_records(story, 2)
    if is_settled:
        settle(story)
    story.poll(0, "x y z")
    settle(story)
    story.end("x y z")
    assert story.found() == found


@pytest.mark.parametrize(("crashes", "found"), [(1, {"DELETION_UNDONE"}), (2, set())])
def test_several_crashes_may_undo_a_deletion_of_records(story, crashes, found):
    story.send("x y z", 0)
    delete_records(story, 2)
    for _ in range(crashes):
        story.crash(CrashKind.PROCESS_KILL)
    settle(story)
    story.poll(0, "x y z")
    story.end("x y z")
    assert story.found() == found


def get_older_offset(story):
    """A member gets offset 1, although 2 is committed."""
    for offset in (1, 2):
        story.commit_offset(offset)
    story.fetch_offset(1)


def test_a_member_that_got_an_older_offset_continues_there(story):
    story.send("x y", 0)
    story.end("x y")
    get_older_offset(story)
    story.commit_offset(1)
    story.final.offsets["g", A] = 1
    assert story.found() == set()


def test_without_that_no_committed_offset_goes_back(story):
    story.send("x y", 0)
    story.end("x y")
    for offset in (1, 2, 1):
        story.commit_offset(offset)
    story.final.offsets["g", A] = 1
    assert story.found() == {"OFFSET_BACK"}


def test_it_copies_records_again(story):
    get_older_offset(story)
    assert copier(story, [0, 1, 1], 2) == set()


def test_it_omits_none(story):
    get_older_offset(story)
    assert copier(story, [0], 2) == {"COPY_MISSING"}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ((3, 5), (3, 4), {"END_FELL"}),
        ((3, 4), (3, 5), set()),
        ((3, 5), (4, 4), {"END_FELL"}),
        ((3, 5), (4, 5), set()),
        ((4, 4), (3, 5), {"END_FELL"}),
        ((4, 5), (3, 4), set()),
        ((-1, 5), (3, 4), set()),
    ],
)
def test_the_end_of_a_leader_is_not_below_those_of_earlier_leaders(story, first, second, found):
    """Also if the earlier one, which does not know of its successor, lists its end later."""
    for epoch, offset in (first, second):
        story.list_end(offset, leader_epoch=epoch)
    assert story.found() == found


def test_a_fetch_from_a_new_leader_may_return_a_lower_end_than_before(story):
    for epoch, offset in ((3, 5), (4, 4)):
        story.history.record_fetched_end("c", story.history.moment(), A, RU, offset, epoch)
    assert story.found() == set()
    story.list_end(4, leader_epoch=4)
    assert story.found() == {"END_FELL"}


@pytest.mark.parametrize(("elected", "found"), [(3, {"END_FELL"}), (4, set()), (5, {"END_FELL"})])
def test_the_end_falls_in_the_epoch_of_an_unclean_election_only(elected, found):
    story = Story(is_cluster=True, unclean=frozenset({"a"}))
    story.history.unclean_elections.append(UncleanElection(A, elected, Moment(0, 0)))
    story.list_end(5, leader_epoch=3)
    story.list_end(4, leader_epoch=4)
    assert story.found() == found


@pytest.mark.parametrize(("is_settled", "found"), [(False, set()), (True, {"END_FELL"})])
def test_after_the_faults_no_end_is_below_an_acknowledged_or_listed_one(story, is_settled, found):
    story.send("x y z", 0)
    story.list_end(3)
    if is_settled:
        settle(story)
    story.list_end(2)
    settle(story)
    story.end("x y z")
    assert story.found() == found


def test_after_the_faults_the_end_is_above_acknowledged_records(story):
    story.send("x y", 0)
    settle(story)
    story.list_end(1)
    story.end("x y")
    assert story.found() == {"END_FELL"}


def test_the_final_read_ends_after_the_listed_end(story):
    story.send("x y", 0)
    story.list_end(3)
    story.end("x y")
    assert story.found() == {"END_FELL"}
