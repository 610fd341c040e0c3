"""SQLite metadata store: the contract of stores, files, format and lock."""

import os
import random
import signal
import sqlite3
import subprocess
import sys

import pytest

from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.tests.store_contract import StoreContract
from odradek.server.stores.sqlite import FILE_NAME, SqliteMetadataStore, StoreFormatError, StoreLockedError


def open_store(directory):
    return SqliteMetadataStore(directory, lambda: 1)


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = open_store(tmp_path)
        yield store
        run_now(store.close())


def test_persistent_nodes_stay_and_ephemeral_nodes_end_with_the_session(tmp_path):
    store = open_store(tmp_path)
    run_now(store.create("/a", b"1"))
    run_now(store.set("/a", b"2"))
    run_now(store.create("/a/e", ephemeral=True))
    before = run_now(store.get("/a"))
    run_now(store.close())
    store = open_store(tmp_path)
    node = run_now(store.get("/a"))
    assert node.data == b"2"
    assert (node.stat.version, node.stat.created_id) == (1, before.stat.created_id)
    assert run_now(store.get_children("/a")) == []
    run_now(store.create("/b"))
    assert run_now(store.get("/b")).stat.created_id > before.stat.modified_id
    run_now(store.close())
    assert sorted(os.listdir(tmp_path)) == [FILE_NAME, f"{FILE_NAME}-wal"]
    assert not any((tmp_path / f"{FILE_NAME}-wal").read_bytes()), "the log is reserved, and empty"


def test_a_newer_format_is_refused(tmp_path):
    run_now(open_store(tmp_path).close())
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("UPDATE meta SET value = 2 WHERE name = 'format_version'")
    connection.close()
    with pytest.raises(StoreFormatError, match="format 2, but this version of Odradek supports 1"):
        open_store(tmp_path)


def test_files_that_are_no_store_are_refused(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 100)
    with pytest.raises(StoreFormatError):
        open_store(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(StoreFormatError):
        open_store(tmp_path)


def test_a_missing_directory_is_an_unavailable_store(tmp_path):
    with pytest.raises(StoreUnavailableError):
        open_store(tmp_path / "none")


def test_a_second_open_store_is_refused(tmp_path):
    store = open_store(tmp_path)
    with pytest.raises(StoreLockedError):
        open_store(tmp_path)
    run_now(store.close())
    run_now(open_store(tmp_path).close())


def test_a_full_disk_fails_the_change_only(tmp_path):
    store = open_store(tmp_path)
    run_now(store.create("/a", b"kept"))
    connection = store._nodes._connection
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreUnavailableError):
        run_now(store.create("/b", bytes(1 << 20)))
    connection.execute("PRAGMA max_page_count=100000")
    assert run_now(store.get_children("/")) == ["a"]
    run_now(store.create("/b", bytes(1 << 20)))
    run_now(store.close())


WRITER = """
import sys
from odradek.replication.metadata.store import Create, SetData, run_now
from odradek.server.stores.sqlite import SqliteMetadataStore

store = SqliteMetadataStore(sys.argv[1], lambda: 1)
run_now(store.ensure_path("/t"))
run_now(store.create("/alive", ephemeral=True))
number = len(run_now(store.get_children("/t")))
while True:
    path = f"/t/{number:08d}"
    run_now(store.transaction([Create(path, b"half"), Create(path + "/child", b"x"), SetData(path, b"whole")]))
    print(number, flush=True)
    number += 1
"""


def test_acknowledged_changes_outlive_kill_9(tmp_path):
    seed = random.Random(7)
    acknowledged = -1
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        wanted = seed.randrange(3, 40)
        for line in writer.stdout:
            acknowledged = int(line)
            wanted -= 1
            if wanted == 0:
                writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=30)
        store = open_store(tmp_path)
        names = run_now(store.get_children("/t"))
        assert len(names) in (acknowledged + 1, acknowledged + 2)
        assert names == [f"{number:08d}" for number in range(len(names))]
        for name in names:
            assert run_now(store.get(f"/t/{name}")).data == b"whole"
            assert run_now(store.get_children(f"/t/{name}")) == ["child"]
        assert run_now(store.exists("/alive")) is None
        run_now(store.close())


def modes(directory):
    return {path.name: oct(path.stat().st_mode & 0o777) for path in directory.iterdir()}


def test_only_the_owner_can_read_a_new_store_which_has_hashes_of_passwords(tmp_path):
    before = os.umask(0o022)
    try:
        store = open_store(tmp_path)
        run_now(store.create("/a", b"1"))
        assert modes(tmp_path) == {FILE_NAME: "0o600", f"{FILE_NAME}-wal": "0o600"}
        run_now(store.close())
        assert modes(tmp_path) == {FILE_NAME: "0o600", f"{FILE_NAME}-wal": "0o600"}
    finally:
        os.umask(before)


def test_others_lose_the_access_to_a_store_of_an_earlier_version_and_its_group_keeps_it(tmp_path):
    run_now(open_store(tmp_path).close())
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    store = open_store(tmp_path)
    run_now(store.create("/a", b"1"))
    assert modes(tmp_path) == {FILE_NAME: "0o640", f"{FILE_NAME}-wal": "0o640"}
    run_now(store.close())
    assert modes(tmp_path) == {FILE_NAME: "0o640", f"{FILE_NAME}-wal": "0o640"}
    store = open_store(tmp_path)
    assert run_now(store.get("/a")).data == b"1"
    run_now(store.close())
