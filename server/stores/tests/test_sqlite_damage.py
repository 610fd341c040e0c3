"""Damaged stores: one readable line names the file and the remedy, at the start and while the broker runs."""

import random
import sqlite3

import pytest

from odradek.replication.controller.controller import Controller
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import MetadataStoreError, StoreDamagedError, run_now
from odradek.replication.metadata.updates import LocalPublisher
from odradek.replication.tests.support import broker as registration
from odradek.server.stores.sqlite import FILE_NAME, SqliteMetadataStore, StoreFormatError
from odradek.server.tests.wire import Wire
from odradek.testing import BrokerFailedError, OdradekBroker

PAGE_BYTES = 4096


def open_store(directory):
    return SqliteMetadataStore(directory, lambda: 1)


def filled(directory):
    store = open_store(directory)
    run_now(prepare_store(store, "a-cluster"))
    run_now(store.ensure_path("/t"))
    for number in range(300):
        run_now(store.create(f"/t/{number:03d}", b"%d" % number * 50))
    return store


def overwrite(path, position, data):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def assert_readable(error, path):
    text = str(error)
    assert str(path) in text
    assert "damaged" in text
    assert "log.dirs.adopt=true" in text
    assert "restore a backup" in text
    assert "\n" not in text


def test_a_damaged_page_is_found_when_the_store_is_opened(tmp_path):
    run_now(filled(tmp_path).close())
    path = tmp_path / FILE_NAME
    pages = path.stat().st_size // PAGE_BYTES
    content = path.read_bytes()
    found = 0
    for page in range(1, pages):
        overwrite(path, page * PAGE_BYTES, b"\xff" * 64)
        try:
            run_now(open_store(tmp_path).close())
        except StoreDamagedError as error:
            found += 1
            assert_readable(error, path)
        path.write_bytes(content)
    assert found > 10


def test_a_damaged_first_page_is_refused(tmp_path):
    run_now(filled(tmp_path).close())
    overwrite(tmp_path / FILE_NAME, 0, bytes(32))
    with pytest.raises(StoreFormatError) as failure:
        open_store(tmp_path)
    assert_readable(failure.value, tmp_path / FILE_NAME)


def test_random_damage_is_readable_or_harmless(tmp_path):
    run_now(filled(tmp_path).close())
    path = tmp_path / FILE_NAME
    content = path.read_bytes()
    seed = random.Random(3)
    outcomes: set[type[MetadataStoreError] | None] = set()
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(seed.choice((1, 5, 40))):
            damaged[seed.randrange(len(damaged))] ^= 1 << seed.randrange(8)
        path.write_bytes(damaged)
        try:
            store = open_store(tmp_path)
        except MetadataStoreError as error:
            outcomes.add(type(error))
            assert FILE_NAME in str(error)
        else:
            outcomes.add(None)
            for name in run_now(store.get_children("/t")):
                run_now(store.get(f"/t/{name}"))
            run_now(store.close())
    assert StoreDamagedError in outcomes


def test_damage_while_the_store_is_in_use_is_reported(tmp_path):
    store = filled(tmp_path)
    path = tmp_path / FILE_NAME
    store._nodes._connection.execute("PRAGMA wal_checkpoint")
    for page in range(1, path.stat().st_size // PAGE_BYTES):
        overwrite(path, page * PAGE_BYTES, b"\xff" * 64)
    store._nodes._connection.execute("PRAGMA shrink_memory")
    with pytest.raises(StoreDamagedError) as failure:
        for number in range(300):
            run_now(store.get(f"/t/{number:03d}"))
    assert_readable(failure.value, path)
    assert failure.value.code == 56
    with pytest.raises(MetadataStoreError):
        run_now(store.close())


def test_a_node_that_cannot_be_decoded_is_named(tmp_path):
    store = filled(tmp_path)
    controller = Controller(store, LocalPublisher(ClusterMetadata()), 1, lambda: 0, lambda: 0)
    run_now(store.create("/brokers/topics/t", b'{"version":3,"partitions":'))
    with pytest.raises(StoreDamagedError, match="its node /brokers/topics/t cannot be decoded") as failure:
        run_now(controller.start(registration(1)))
    assert_readable(failure.value, tmp_path / FILE_NAME)
    run_now(store.close())


@pytest.mark.parametrize("damage", ["a page", "a node", "no table"])
def test_a_broker_does_not_start_on_a_damaged_store(damage):
    with OdradekBroker() as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t")
        broker.stop()
        path = broker.data_dir / FILE_NAME
        if damage == "a page":
            overwrite(path, PAGE_BYTES, b"\xff" * 512)
        else:
            with sqlite3.connect(path) as connection:
                statement = "DROP TABLE node" if damage == "no table" else "UPDATE node SET data = '[]'"
                connection.execute(statement)
            connection.close()
        with pytest.raises(BrokerFailedError) as failure:
            broker.start()
    lines = [line for line in str(failure.value).splitlines() if "cannot start" in line]
    assert len(lines) == 1
    assert_readable(lines[0], path)
    assert "Traceback" not in str(failure.value)
