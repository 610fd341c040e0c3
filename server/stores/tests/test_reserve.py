"""The store's reserve: it has room for any change, and is allocated again at each stop."""

import os

import pytest

from odradek.replication.metadata.store import Create, Delete, run_now
from odradek.server.stores.reserve import FREE_PAGES, MIN_LOG_BYTES
from odradek.server.stores.sqlite import FILE_NAME, SqliteMetadataStore


def open_store(directory):
    return SqliteMetadataStore(directory, lambda: 1)


def allocated(directory, suffix="-wal"):
    """Size of a file; asserts that the disk has blocks for all of it."""
    stat = (directory / f"{FILE_NAME}{suffix}").stat()
    assert stat.st_blocks * 512 >= stat.st_size
    return stat.st_size


def pragma(store, name):
    [value] = store._nodes._connection.execute(f"PRAGMA {name}").fetchone()
    return value


def test_a_new_store_and_a_closed_store_have_reserved_space(tmp_path):
    store = open_store(tmp_path)
    assert allocated(tmp_path) == MIN_LOG_BYTES
    assert pragma(store, "freelist_count") >= FREE_PAGES // 2
    run_now(store.close())
    assert allocated(tmp_path) == MIN_LOG_BYTES
    assert not any((tmp_path / f"{FILE_NAME}-wal").read_bytes())
    allocated(tmp_path, "")


def test_the_largest_change_fits_into_the_reserve(tmp_path):
    """All nodes are deleted in one transaction, and the log does not grow beyond its allocated size."""
    store = open_store(tmp_path)
    for start in range(0, 24_000, 2000):
        run_now(store.transaction([Create(f"/{number:05d}", bytes(150)) for number in range(start, start + 2000)]))
    assert (tmp_path / FILE_NAME).stat().st_size > MIN_LOG_BYTES
    before = allocated(tmp_path)
    database_bytes = (tmp_path / FILE_NAME).stat().st_size
    assert before > database_bytes
    run_now(store.transaction([Delete(f"/{number:05d}") for number in range(24_000)]))
    assert allocated(tmp_path) == before
    assert pragma(store, "page_count") * 4096 <= database_bytes + 4096 * FREE_PAGES
    run_now(store.close())


def test_free_pages_are_added_when_few_are_left(tmp_path):
    store = open_store(tmp_path)
    least = FREE_PAGES
    for number in range(300):
        run_now(store.create(f"/{number:03d}", bytes(3000)))
        least = min(least, pragma(store, "freelist_count"))
    assert 0 < least < FREE_PAGES // 2 + 8
    run_now(store.close())


def test_a_store_opens_on_a_full_disk_and_reserves_once_there_is_room(tmp_path, monkeypatch, caplog):
    statvfs = os.statvfs
    is_full = True

    class Full:
        f_bavail, f_frsize = 0, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Full if is_full else statvfs(path))
    store = open_store(tmp_path)
    run_now(store.create("/a"))
    assert allocated(tmp_path) < MIN_LOG_BYTES
    assert caplog.text.count("no space for the reserve of the metadata store") == 1
    is_full = False
    run_now(store.create("/b"))
    assert allocated(tmp_path) == MIN_LOG_BYTES
    run_now(store.close())


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_copied_store_opens_with_its_nodes(tmp_path, ending):
    store = open_store(tmp_path)
    run_now(store.create("/a", b"1"))
    target = tmp_path / "again"
    target.mkdir()
    if ending == "closed":
        run_now(store.close())
    for path in tmp_path.glob(f"{FILE_NAME}*"):
        (target / path.name).write_bytes(path.read_bytes())
    again = open_store(target)
    assert run_now(again.get("/a")).data == b"1"
    run_now(again.close())
    if ending == "killed":
        run_now(store.close())
