"""Removed secrets are in no file of the embedded store."""

import base64
import os
import random
import re
import sqlite3

import pytest

from odradek.replication.metadata.store import Create, Delete, run_now
from odradek.server.stores import erasure
from odradek.server.stores.reserve import MIN_LOG_BYTES
from odradek.server.stores.sqlite import FILE_NAME, SqliteMetadataStore

USERS = "/config/users"


@pytest.fixture
def seed():
    return random.Random(5)


@pytest.fixture
def store(tmp_path):
    store = SqliteMetadataStore(tmp_path, lambda: 1)
    run_now(store.ensure_path(USERS))
    run_now(store.ensure_path("/config/brokers"))
    yield store
    run_now(store.close())


def make_secret(seed):
    return base64.b64encode(seed.randbytes(32))


def make_user(*secrets):
    credentials = (b'"SCRAM-SHA-%d":"stored_key=%s,iterations=4096"' % pair for pair in enumerate(secrets))
    return b'{"version":1,"config":{%s}}' % b",".join(credentials)


def find(directory, *secrets):
    """Return the secrets of which a part of 31 bytes or more is in a file of the store."""
    windows = {secret[start : start + 31]: secret for secret in secrets for start in range(len(secret) - 30)}
    found = set()
    for path in directory.glob(f"{FILE_NAME}*"):
        for run in re.findall(rb"[A-Za-z0-9+/=]{31,}", path.read_bytes()):
            found.update(windows.get(run[start : start + 31]) for start in range(len(run) - 30))
    return [secret for secret in secrets if secret in found]


@pytest.mark.parametrize("path", [f"{USERS}/alice", "/config/brokers/1"])
@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
def test_a_removed_secret_is_in_no_file(tmp_path, store, seed, path, is_replaced):
    removed, kept = make_secret(seed), make_secret(seed)
    run_now(store.create(path, make_user(kept, removed)))
    run_now(store.create(f"{USERS}/other", b"-" * 2000))
    assert find(tmp_path, removed)
    if is_replaced:
        run_now(store.set(path, make_user(kept)))
        assert find(tmp_path, kept, removed) == [kept]
    else:
        run_now(store.delete(path))
        assert find(tmp_path, kept, removed) == []
    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size >= MIN_LOG_BYTES


def test_many_changes_of_users_leave_the_secrets_of_the_present_ones_only(tmp_path, store, seed):
    """Pages are split and merged, which copies rows."""
    present, removed = {}, []
    while len(removed) < 200:
        path = f"{USERS}/{seed.randrange(100)}"
        filler = b"-" * seed.choice((0, 60, 60, 300, 5000))
        secret = make_secret(seed)
        if path not in present:
            run_now(store.create(path, make_user(secret) + filler))
        elif seed.random() < 0.5:
            removed.append(present[path])
            run_now(store.set(path, make_user(secret) + filler))
        else:
            removed.append(present.pop(path))
            run_now(store.delete(path))
            continue
        present[path] = secret
    assert find(tmp_path, *removed) == []
    for path, secret in present.items():
        assert secret in run_now(store.get(path)).data


def test_a_copy_in_unused_space_of_a_page_is_erased(tmp_path, store, seed, monkeypatch):
    """SQLite leaves such a copy rarely: here one is in a row of its own."""
    secret = make_secret(seed)
    run_now(store.create(f"{USERS}/alice", make_user(secret)))
    rebuilt = []
    monkeypatch.setattr(erasure, "_rebuild", lambda connection: rebuilt.append(connection))
    run_now(store.create("/copy", secret))
    run_now(store.delete(f"{USERS}/alice"))
    assert len(rebuilt) == 1
    run_now(store.create(f"{USERS}/bob", make_user(make_secret(seed))))
    run_now(store.delete(f"{USERS}/bob"))
    assert len(rebuilt) == 1


def test_many_secrets_of_one_change_are_erased(tmp_path, store, seed):
    secrets = [make_secret(seed) for _ in range(500)]
    run_now(store.transaction([Create(f"{USERS}/{i}", make_user(secret)) for i, secret in enumerate(secrets)]))
    run_now(store.transaction([Delete(f"{USERS}/{i}") for i in range(500)]))
    assert find(tmp_path, *secrets) == []


def test_on_a_full_disk_the_log_keeps_its_space_and_a_later_change_erases(tmp_path, store, seed, monkeypatch):
    class Full:
        f_bavail, f_frsize = 0, 4096

    secret = make_secret(seed)
    run_now(store.create(f"{USERS}/alice", make_user(secret)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: Full)
        run_now(store.delete(f"{USERS}/alice"))
        assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size >= MIN_LOG_BYTES
        assert find(tmp_path, secret)
    run_now(store.create("/later"))
    assert find(tmp_path, secret) == []


def test_quotas_of_users_are_no_secrets(tmp_path, store, monkeypatch):
    monkeypatch.setattr(erasure, "_truncate_log", lambda connection: pytest.fail("the log was truncated"))
    run_now(store.create(f"{USERS}/alice", b'{"version":1,"config":{"controller_mutation_rate":"10.5"}}'))
    run_now(store.set(f"{USERS}/alice", b'{"version":1,"config":{}}'))


def test_a_file_of_an_earlier_version_is_rebuilt_once(tmp_path, seed, monkeypatch):
    secret = make_secret(seed)
    store = SqliteMetadataStore(tmp_path, lambda: 1)
    run_now(store.close())
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("PRAGMA secure_delete=OFF")
        connection.execute("DELETE FROM meta WHERE name = ?", (erasure.MARK,))
        connection.execute("INSERT INTO reserve VALUES (?)", (secret,))
        connection.execute("DELETE FROM reserve")
    connection.close()
    assert find(tmp_path, secret)
    store = SqliteMetadataStore(tmp_path, lambda: 1)
    assert not find(tmp_path, secret)
    run_now(store.close())
    monkeypatch.setattr(erasure, "_rebuild", lambda connection: pytest.fail("the file was rebuilt again"))
    run_now(SqliteMetadataStore(tmp_path, lambda: 1).close())


def test_the_log_of_a_killed_process_is_erased_by_the_next_start(tmp_path, store, seed, monkeypatch):
    secret = make_secret(seed)
    run_now(store.create(f"{USERS}/alice", make_user(secret)))
    with monkeypatch.context() as patch:
        patch.setattr(erasure.SecretErasure, "after_commit", lambda erasure, connection: None)
        run_now(store.delete(f"{USERS}/alice"))
    again = tmp_path / "again"
    again.mkdir()
    for suffix in ("", "-wal"):
        (again / f"{FILE_NAME}{suffix}").write_bytes((tmp_path / f"{FILE_NAME}{suffix}").read_bytes())
    assert find(again, secret)
    started = SqliteMetadataStore(again, lambda: 1)
    assert not find(again, secret)
    run_now(started.close())
