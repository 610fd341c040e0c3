"""Moves of replicas that meet deletions, truncations, shortages, and busy producers."""

from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import NEW_ID, append, folders, opened, run_until, served
from odradek.log.tests.test_moves import KEY, A, B, begin, create, open_manager, other, values
from odradek.log.tests.threads import Threads


def test_a_topic_that_is_created_anew_keeps_its_directory():
    """The directory that the replica of the deleted topic left was not renamed yet."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    begin(manager, log)
    while served(manager) is log:
        threads.run(1)
    manager.delete_log(*KEY)
    manager.prefer_directory(*KEY, home)
    new = manager.create_log(*KEY, NEW_ID, 0)
    append(new, b"new")
    threads.run()
    run_until(manager, 0, 5_000)
    threads.run()
    assert new.directory == f"{home}/t-0"
    assert (folders(fs, home), folders(fs, other(new))) == (["t-0"], [])
    manager.close(0)
    assert values(served(opened(fs, (A, B), ids={"t": NEW_ID}))) == [b"new"]
