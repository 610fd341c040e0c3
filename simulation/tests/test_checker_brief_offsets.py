"""Offsets with a retention time, and deleted groups: each violation in a small history."""

import pytest

from odradek.simulation.history import Outcome
from odradek.simulation.tests.story import A, Story

RETENTION_MS = 100


class BriefStory(Story):
    """A story with a clock, in which every commit has the retention `RETENTION_MS`."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.now_ms = 0
        self.history._now_ms = lambda: self.now_ms

    def commit_briefly(self, offset, outcome=Outcome.OK):
        commit = self.history.begin_commit("c", "g", A, offset, retention_ms=RETENTION_MS)
        self.history.end_commit(commit, outcome)

    def delete_group(self, outcome=Outcome.OK):
        self.history.end_group_deletion(self.begin_group_deletion(), outcome, "")

    def begin_group_deletion(self):
        return self.history.begin_group_deletion("c", "g")


@pytest.fixture
def story():
    return BriefStory()


@pytest.mark.parametrize(("after_ms", "found"), [(99, {"OFFSET_BACK"}), (100, set())])
def test_an_offset_does_not_expire_before_its_time(story, after_ms, found):
    story.commit_briefly(1)
    story.now_ms = after_ms
    story.fetch_offset(-1)
    assert story.found() == found


def test_an_earlier_offset_is_not_returned(story):
    story.commit_briefly(1)
    story.commit_briefly(2)
    story.now_ms = 1000
    story.fetch_offset(1)
    assert story.found() == {"OFFSET_BACK"}


def test_a_commit_without_a_response_need_not_be_stored(story):
    story.commit_briefly(1)
    story.commit_briefly(2, Outcome.UNKNOWN)
    story.fetch_offset(1)
    story.fetch_offset(2)
    assert story.found() == set()


def test_a_power_loss_may_lose_an_offset(story):
    story.commit_briefly(1)
    story.crash()
    story.fetch_offset(-1)
    assert story.found() == set()


def test_a_deleted_group_has_no_offset(story):
    story.commit_briefly(1)
    story.delete_group()
    story.fetch_offset(-1)
    assert story.found() == set()
    story.fetch_offset(1)
    assert story.found() == {"OFFSET_INVENTED"}


def test_a_power_loss_may_lose_a_deletion(story):
    story.commit_briefly(1)
    story.delete_group()
    story.crash()
    story.fetch_offset(1)
    assert story.found() == set()


def test_a_deletion_after_a_power_loss_counts(story):
    story.commit_briefly(1)
    story.crash()
    story.delete_group()
    story.fetch_offset(1)
    assert story.found() == {"OFFSET_INVENTED"}


def test_a_group_whose_deletion_was_refused_has_its_offset(story):
    story.commit_briefly(1)
    story.delete_group(Outcome.FAILED)
    story.fetch_offset(-1)
    assert story.found() == {"OFFSET_BACK"}


def test_a_commit_after_the_deletion_counts(story):
    story.commit_briefly(1)
    story.delete_group()
    story.commit_briefly(2)
    story.fetch_offset(-1)
    assert story.found() == {"OFFSET_BACK"}


def test_a_deletion_during_the_commit_may_come_before_or_after(story):
    deletion = story.begin_group_deletion()
    story.commit_briefly(1)
    story.history.end_group_deletion(deletion, Outcome.OK, "")
    story.fetch_offset(-1)
    story.fetch_offset(1)
    assert story.found() == set()


@pytest.mark.parametrize(
    ("outcome", "found"), [(Outcome.OK, set()), (Outcome.UNKNOWN, set()), (Outcome.FAILED, {"OFFSET_BACK"})]
)
def test_the_offsets_of_consumers_go_with_their_group(story, outcome, found):
    story.commit_offset(2)
    story.delete_group(outcome)
    story.fetch_offset(-1)
    assert story.found() == found


def test_the_offsets_of_consumers_count_again_after_the_deletion(story):
    story.commit_offset(2)
    story.delete_group()
    story.commit_offset(1)
    story.fetch_offset(-1)
    assert story.found() == {"OFFSET_BACK"}


@pytest.mark.parametrize(
    ("outcome", "found"), [(Outcome.OK, set()), (Outcome.UNKNOWN, set()), (Outcome.FAILED, {"OFFSET_BACK"})]
)
def test_a_deletion_during_the_fetch_may_come_before_its_response(story, outcome, found):
    story.commit_offset(2)
    invoked = story.history.moment()
    story.delete_group(outcome)
    story.fetch_offset(2, invoked=invoked)
    assert story.found() == set()
    story.fetch_offset(-1, invoked=invoked)
    assert story.found() == found


def test_a_fetch_that_ended_before_the_deletion_has_the_offset(story):
    story.commit_offset(2)
    story.fetch_offset(-1)
    story.delete_group()
    assert story.found() == {"OFFSET_BACK"}


def test_a_fetch_across_a_deletion_may_return_a_later_commit(story):
    story.commit_offset(2)
    invoked = story.history.moment()
    story.delete_group()
    story.commit_offset(1)
    story.fetch_offset(1, invoked=invoked)
    assert story.found() == set()


def test_a_fetch_across_a_deletion_returns_no_earlier_commit(story):
    story.commit_offset(1)
    story.commit_offset(2)
    invoked = story.history.moment()
    story.delete_group()
    story.fetch_offset(1, invoked=invoked)
    assert story.found() == {"OFFSET_BACK"}


@pytest.mark.parametrize(("deletes", "found"), [(True, set()), (False, {"TWO_OWNERS"})])
def test_the_generations_of_a_deleted_group_begin_again(story, deletes, found):
    story.history.record_assignment("c1", story.history.moment(), "g", 1, "m1", [A])
    if deletes:
        story.delete_group()
    story.history.record_assignment("c2", story.history.moment(), "g", 1, "m2", [A])
    assert story.found() == found


def test_an_assignment_may_arrive_after_the_deletion_of_its_group(story):
    invoked = story.history.moment()
    story.delete_group()
    story.history.record_assignment("c1", invoked, "g", 1, "m1", [A])
    story.history.record_assignment("c2", story.history.moment(), "g", 1, "m2", [A])
    assert story.found() == set()
