"""Moves of logs of topics without an id."""

import pytest

from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, append, folders, opened, served
from odradek.log.tests.test_moves import SMALL_SEGMENTS, A, B, move_until_served, numbered, other, values
from odradek.log.tests.threads import Threads


@pytest.mark.parametrize("topic_id", [TOPIC_ID, bytes(16)], ids=["id", "no id"])
def test_of_two_directories_the_new_one_is_served(topic_id):
    """A crash between the renames of a move."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, (A, B), SMALL_SEGMENTS, ids={"t": topic_id}, run_in_thread=threads)
    log = manager.create_log("t", 0, topic_id, 0)
    append(log, *numbered(200))
    log.flush(0)
    move_until_served(manager, log, threads)
    moved = served(manager)
    manager.close(0)
    assert (folders(fs, A), folders(fs, B)) == (["t-0"], ["t-0"])
    again = opened(fs, (A, B), SMALL_SEGMENTS, ids={"t": topic_id})
    assert served(again).log_directory == moved.log_directory
    assert values(served(again)) == numbered(200)
    assert folders(fs, other(moved)) == ["t-0-delete"]
