"""Disks that really fail: full, read-only, dead, and with damaged files."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from compat_tests import bad_frames, limits, processes
from compat_tests.clients import load
from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, wait_until
from compat_tests.kill.history import Entry, Fate, Ledger, Log, check_log, shown
from compat_tests.kill.load import read_whole, running
from compat_tests.kill.transactional import ConfluentTransactionalWriter
from compat_tests.kill.writers import ConfluentWriter, Writer, wait_for_first_answers
from compat_tests.storage.damage import DAMAGES, check_read, read_until_error
from compat_tests.storage.disks import (
    LOSE_WHAT_WAS_NOT_SYNCED,
    SYNC_FIRST,
    Disk,
    NotPermittedError,
    image_disk,
    memory_disk,
)
from odradek.testing import BrokerFailedError, OdradekBroker

KAFKA_STORAGE_ERROR = 56
TOPIC = "on-this-disk"
MEBIBYTE = 1 << 20


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Mount disks; the test is skipped if that is not permitted."""
    with ExitStack() as stack:

        def mount(kind: Callable[..., Any], name: str, size_bytes: int) -> Disk:
            try:
                return stack.enter_context(kind(tmp_path / name, size_bytes))
            except NotPermittedError as error:
                pytest.skip(f"needs root and the means to mount a file system: {error}")

        yield mount


@pytest.fixture
def broker_on(tmp_path: Path) -> Iterator[Callable[..., OdradekBroker]]:
    """Start a broker whose log directories are on the given disks."""
    with ExitStack() as stack:

        def start(*disks: Disk, **properties: str) -> OdradekBroker:
            settings = {
                "log.dirs": ",".join(str(disk.path / "data") for disk in disks),
                "log.segment.bytes": str(MEBIBYTE),
                **{name.replace("_", "."): value for name, value in properties.items()},
            }
            broker = OdradekBroker(settings, directory=tmp_path / "broker")
            stack.callback(lambda: print("\n".join(broker.log_text().splitlines()[-40:])))
            stack.callback(broker.kill)
            return broker.start()

        yield start


def create(broker: OdradekBroker, topic: str, partitions: int) -> None:
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions)


def error_of_a_write(broker: OdradekBroker, topic: str, partition: int, size: int = 100) -> int:
    """Return the error code of a write of one record, sent even if clients would not send it; 0 if it succeeds."""
    with bad_frames.Connection(broker.port) as connection:
        records = bad_frames.batch([(b"x" * size, b"probe.0")])
        return bad_frames.produce(connection, topic, records, partition=partition)[0]


def find_violations(broker: OdradekBroker, partitions: int, ledgers: list[Ledger]) -> list[str]:
    """Compare the stored records with the acknowledgements to writers."""
    log = read_whole(broker.bootstrap_servers, TOPIC, partitions, "read_committed")
    probes = Ledger("probe", once=False, entries=[Entry()])
    complaints = [f"{ledger.writer}: {trouble}" for ledger in ledgers for trouble in ledger.troubles]
    return complaints + check_log([*ledgers, probes], log, committed_only=True)


def make_writers(broker: OdradekBroker, partitions: int) -> list[Writer]:
    """Return producers that retry until their records are written."""
    common: dict[str, Any] = {"bootstrap": broker.bootstrap_servers, "topic": TOPIC, "partitions": partitions}
    return [
        ConfluentWriter("idempotent", once=True, seed="disks", **common),
        ConfluentWriter("plain", once=False, seed="disks", **common),
        ConfluentTransactionalWriter("transactional", once=True, seed="disks", **common),
    ]


def acknowledged(writers: Sequence[Writer]) -> int:
    return sum(writer.ledger.count(Fate.ACKNOWLEDGED) for writer in writers)


def has_acknowledged_more(writers: Sequence[Writer], count: int) -> bool:
    return acknowledged(writers) > count


def is_refused_with_storage_error(broker: OdradekBroker, partition: int) -> bool:
    return error_of_a_write(broker, TOPIC, partition, 100) == KAFKA_STORAGE_ERROR


def test_a_full_disk_refuses_writes_until_there_is_room(
    mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]
) -> None:
    """Existing records are served meanwhile, and producers that retry lose nothing."""
    disk = mounted(memory_disk, "disk", 48 * MEBIBYTE)
    broker = broker_on(disk)
    create(broker, TOPIC, 2)
    create(broker, "probe", 1)
    writers = make_writers(broker, 2)
    with running(writers):
        wait_for_first_answers(writers)
        wait_until(lambda: acknowledged(writers) > 500, what="first writes")
        disk.fill(leave_bytes=256 * 1024)
        wait_until(lambda: error_of_a_write(broker, "probe", 0, 100_000) == KAFKA_STORAGE_ERROR, what="a full disk")
        before = acknowledged(writers)
        assert sum(map(len, read_whole(broker.bootstrap_servers, TOPIC, 2, "read_uncommitted").values())) > 0
        disk.make_room()
        wait_until(lambda: error_of_a_write(broker, "probe", 0) == 0, what="free space to be detected")
        wait_until(lambda: acknowledged(writers) > before + 500, what="writes to go on")
    ledgers = [writer.ledger for writer in writers]
    assert not (complaints := find_violations(broker, 2, ledgers)), shown(complaints)
    broker.restart(clean=False)
    assert not (complaints := find_violations(broker, 2, ledgers)), shown(complaints)


def test_a_broker_killed_on_a_full_disk_starts_again(
    mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]
) -> None:
    """Without a free byte it serves the written records, or its error states the shortage; with space it continues."""
    disk = mounted(memory_disk, "disk", 32 * MEBIBYTE)
    broker = broker_on(disk)
    create(broker, TOPIC, 2)
    writers = [ConfluentWriter("plain", broker.bootstrap_servers, TOPIC, 2, once=False, seed="disks")]
    with running(writers):
        wait_until(lambda: acknowledged(writers) > 500, what="first writes")
    disk.fill()
    assert error_of_a_write(broker, TOPIC, 0, 100_000) == KAFKA_STORAGE_ERROR
    broker.kill()
    try:
        broker.start()
    except BrokerFailedError as error:
        assert re.search(r"No space left|disk is full|no room|full", str(error)), error
        assert "Traceback" not in str(error)
        disk.make_room()
        broker.start()
    else:
        assert not (complaints := find_violations(broker, 2, [writers[0].ledger])), shown(complaints)
        disk.make_room()
    wait_until(lambda: error_of_a_write(broker, TOPIC, 0) == 0, what="writes to be taken")
    assert not (complaints := find_violations(broker, 2, [writers[0].ledger])), shown(complaints)


BIG = "big"
DOOMED = 60


def fill_with_topics(broker: OdradekBroker) -> None:
    """Create a topic of several segments, and many small ones whose new names need space in their directory."""
    with load("confluent").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(BIG, 1)
        for number in range(DOOMED):
            admin.create_topic(f"doomed-{number}-with-a-name-of-some-length", 1)
    wait_until(lambda: error_of_a_write(broker, BIG, 0) == 0)
    for _ in range(10):
        assert error_of_a_write(broker, BIG, 0, 700_000) == 0
    for number in range(0, DOOMED, 2):
        assert error_of_a_write(broker, f"doomed-{number}-with-a-name-of-some-length", 0) == 0


def refused(broker: OdradekBroker) -> bool:
    return error_of_a_write(broker, BIG, 0, 100_000) == KAFKA_STORAGE_ERROR


def make_room_by_administration(broker: OdradekBroker, disk: Disk) -> None:
    """Delete topics and lower retention on a full disk; then writes succeed."""
    path = disk.path / "data"
    with load("confluent").Admin(broker.bootstrap_servers) as admin:
        for number in range(DOOMED):
            admin.delete_topic(f"doomed-{number}-with-a-name-of-some-length")
            if number % 10 == 0:
                disk.fill_to_the_last_byte()
        assert not any(name.startswith("doomed") for name in admin.topics())
        disk.fill_to_the_last_byte()
        assert refused(broker)
        admin.alter_config(BIG, "retention.bytes", "SET", "1")
        assert admin.describe_configs(BIG)["retention.bytes"].value == "1"
    wait_until(lambda: error_of_a_write(broker, BIG, 0, 100_000) == 0, what="writes to be taken again")
    wait_until(lambda: not list(path.glob("doomed*")), what="the deleted topics' files to go")
    assert "is offline" not in broker.log_text()
    assert "Traceback" not in broker.log_text()


ADMINISTRATION = {
    "log_retention_check_interval_ms": "500",
    "log_initial_task_delay_ms": "0",
    "log_segment_delete_delay_ms": "2000",
}


@pytest.mark.parametrize("kind", [memory_disk, image_disk])
def test_topics_are_deleted_and_retention_is_lowered_with_no_byte_free(
    kind: Callable[..., Any], mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]
) -> None:
    """The store has reserved space, and other space is found; the changes survive a restart of the broker."""
    disk = mounted(kind, "disk", 64 * MEBIBYTE)
    broker = broker_on(disk, **ADMINISTRATION)
    fill_with_topics(broker)
    disk.fill_to_the_last_byte()
    assert refused(broker)
    make_room_by_administration(broker, disk)
    broker.restart(clean=False)
    with load("confluent").Admin(broker.bootstrap_servers) as admin:
        assert BIG in admin.topics()
        assert not any(name.startswith("doomed") for name in admin.topics())
        assert admin.describe_configs(BIG)["retention.bytes"].value == "1"


@pytest.mark.parametrize("kind", [memory_disk, image_disk])
def test_a_start_with_no_byte_free_allows_space_to_be_freed(
    kind: Callable[..., Any], mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]
) -> None:
    """Another program fills the disk while the broker is stopped; the reserved space of the store remains."""
    disk = mounted(kind, "disk", 64 * MEBIBYTE)
    broker = broker_on(disk, **ADMINISTRATION)
    fill_with_topics(broker)
    broker.stop()
    disk.fill_to_the_last_byte()
    broker.start()
    disk.fill_to_the_last_byte()
    assert refused(broker)
    make_room_by_administration(broker, disk)


def partitions_by_disk(disks: list[Disk], topic: str) -> dict[Path, list[int]]:
    """Return the partitions of a topic by disk."""
    return {
        disk.path: sorted(int(path.name.rpartition("-")[2]) for path in disk.path.glob(f"data/{topic}-*"))
        for disk in disks
    }


def errors_of_log_dirs(broker: OdradekBroker) -> dict[str, int]:
    """Return the error code of each directory in DescribeLogDirs."""
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        (reported,) = admin._admin.describe_log_dirs()
    return {each["log_dir"]: each["error_code"] for each in reported["log_dirs"]}


@pytest.mark.parametrize("how", ["dead", "read-only"])
def test_one_of_two_disks_fails(
    how: str, mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]
) -> None:
    """Its partitions return KAFKA_STORAGE_ERROR, those on the other disk are served; after a repair all are served."""
    good = mounted(memory_disk, "good", 64 * MEBIBYTE)
    bad = mounted(image_disk, "bad", 64 * MEBIBYTE)
    broker = broker_on(good, bad)
    create(broker, TOPIC, 4)
    where = partitions_by_disk([good, bad], TOPIC)
    assert where[good.path]
    assert where[bad.path]
    writers = make_writers(broker, 4)
    with running(writers):
        wait_until(lambda: acknowledged(writers) > 500, what="first writes")
    if how == "dead":
        bad.die(SYNC_FIRST)
    else:
        broker.kill()
        bad.make_read_only()
        broker.start()
    for partition in where[bad.path]:
        wait_until(partial(is_refused_with_storage_error, broker, partition))
    for partition in where[good.path]:
        assert error_of_a_write(broker, TOPIC, partition, 100) == 0
    errors = errors_of_log_dirs(broker)
    assert errors == {str(good.path / "data"): 0, str(bad.path / "data"): KAFKA_STORAGE_ERROR}
    assert str(bad.path) in broker.log_text()
    assert broker.is_running
    broker.kill()
    bad.mount_again()
    broker.start()
    assert not (complaints := find_violations(broker, 4, [writer.ledger for writer in writers])), shown(complaints)


def folders(disk: Disk) -> list[str]:
    return sorted(path.name for path in disk.path.glob(f"data/{TOPIC}-*"))


def write_each(broker: OdradekBroker, partitions: int, times: int) -> None:
    for partition in range(partitions):
        for _ in range(times):
            assert error_of_a_write(broker, TOPIC, partition) == 0


def sizes(broker: OdradekBroker, partitions: int) -> list[tuple[int, int]]:
    """Return first offset and end of each partition."""
    client = load("kafka_python")
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
        return [consumer.bounds((TOPIC, partition)) for partition in range(partitions)]


def recreate(broker: OdradekBroker, partitions: int) -> None:
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC, partitions)


def test_a_topic_is_recreated_while_a_disk_is_absent(tmp_path: Path, broker_on: Callable[..., OdradekBroker]) -> None:
    """When the disk is back, its logs of the deleted topic become stray."""
    good, bad = (Disk(tmp_path / name, lambda: None) for name in ("good", "bad"))
    broker = broker_on(good, bad)
    create(broker, TOPIC, 4)
    write_each(broker, 4, times=3)
    where = partitions_by_disk([good, bad], TOPIC)
    assert len(where[bad.path]) == 2
    broker.stop()
    checkpoint = bad.path / "data" / "recovery-point-offset-checkpoint"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(b"unreadable")
    broker.start()
    assert errors_of_log_dirs(broker)[str(bad.path / "data")] == KAFKA_STORAGE_ERROR
    recreate(broker, 4)
    write_each(broker, 4, times=1)
    broker.stop()
    checkpoint.write_bytes(content)
    for _ in range(2):
        broker.start()
        assert sizes(broker, 4) == [(0, 1)] * 4
        names = folders(bad)
        for name, partition in zip(names, where[bad.path], strict=True):
            assert re.fullmatch(rf"{TOPIC}-{partition}\.[0-9a-f]{{32}}-stray", name)
            assert f"renamed={bad.path / 'data' / name}" in broker.log_text()
        broker.stop()


def test_a_topic_is_recreated_in_place_of_one_that_was_refused(
    tmp_path: Path, broker_on: Callable[..., OdradekBroker]
) -> None:
    """No record of the damaged log is served as one of the new topic."""
    disk = Disk(tmp_path / "disk", lambda: None)
    broker = broker_on(disk, log_segment_delete_delay_ms="0")
    create(broker, TOPIC, 2)
    write_each(broker, 2, times=3)
    broker.stop()
    (disk.path / "data" / f"{TOPIC}-1" / "partition.metadata").write_bytes(b"unreadable")
    broker.start()
    assert error_of_a_write(broker, TOPIC, 1) == KAFKA_STORAGE_ERROR
    recreate(broker, 2)
    write_each(broker, 2, times=1)
    wait_until(lambda: folders(disk) == [f"{TOPIC}-0", f"{TOPIC}-1"], what="the old files to go")
    broker.restart()
    assert sizes(broker, 2) == [(0, 1)] * 2


def test_the_only_disk_dies(mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]) -> None:
    """The broker logs the failure and exits with 1, at run time and at a start; after a repair all is served again."""
    disk = mounted(image_disk, "disk", 64 * MEBIBYTE)
    broker = broker_on(disk)
    create(broker, TOPIC, 2)
    writers = make_writers(broker, 2)
    with running(writers):
        wait_until(lambda: acknowledged(writers) > 500, what="first writes")
    disk.die(SYNC_FIRST)
    confluent = ConfluentWriter("last", broker.bootstrap_servers, TOPIC, 2, once=False, seed="disks")
    confluent.start()
    wait_until(lambda: not broker.is_running, what="the broker to end")
    confluent.abandon()
    confluent.join()
    assert broker.stop() == 1
    assert "Traceback" not in broker.log_text()
    assert re.search(rf"{re.escape(str(disk.path))}.*Input/output error", broker.log_text())
    disk.mount_again()
    disk.make_read_only()
    with pytest.raises(BrokerFailedError, match=r"(?s)exit code [12].*is not writable") as failure:
        broker.start()
    assert "Traceback" not in str(failure.value)
    disk.make_writable()
    broker.start()
    ledgers = [writer.ledger for writer in [*writers, confluent]]
    confluent.ledger.troubles.clear()
    assert not (complaints := find_violations(broker, 2, ledgers)), shown(complaints)


def cut_power(broker: OdradekBroker, disk: Disk) -> None:
    """Stop the processor before the disk loses data.

    A sync that is in progress while Linux shuts a file system down may report success without effect; after a power
    loss nothing observes this.
    """
    processes.freeze(broker.pid)
    disk.die(LOSE_WHAT_WAS_NOT_SYNCED)
    broker.kill()
    disk.mount_again()


def test_power_is_cut(mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]) -> None:
    """With flush.before.acks no acknowledged record is lost with the unsynced data of the disk."""
    disk = mounted(image_disk, "disk", 96 * MEBIBYTE)
    broker = broker_on(disk, flush_before_acks="true")
    create(broker, TOPIC, 2)
    writers = make_writers(broker, 2)
    with running(writers):
        for _ in range(2):
            least = acknowledged(writers) + 300
            wait_until(partial(has_acknowledged_more, writers, least), what="acknowledgements")
            cut_power(broker, disk)
            broker.start()
    assert not (complaints := find_violations(broker, 2, [writer.ledger for writer in writers])), shown(complaints)


class Written(NamedTuple):
    """A killed broker's directory, and the records that it served before."""

    directory: Path
    committed: Log
    uncommitted: Log


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Write a partition for each kind of damage, with several segments, aborted transactions and open ones."""
    directory = tmp_path_factory.mktemp("written")
    properties = {
        "log.segment.bytes": str(MEBIBYTE),
        "log.roll.ms": "700",
        "log.index.interval.bytes": "512",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }
    with OdradekBroker(properties, directory=directory) as broker:
        create(broker, TOPIC, len(DAMAGES))
        writers = make_writers(broker, len(DAMAGES))

        def is_enough() -> bool:
            partitions = list(broker.data_dir.glob(f"{TOPIC}-*"))
            return all(len(list(p.glob("*.log"))) > 2 and list(p.glob("*.txnindex")) for p in partitions)

        with running(writers):
            wait_until(is_enough, limits.CLIENT_START_S, "segments")
            wait_until((broker.data_dir / "replication-offset-checkpoint").exists, what="a checkpoint")
        committed = read_whole(broker.bootstrap_servers, TOPIC, len(DAMAGES), "read_committed")
        uncommitted = read_whole(broker.bootstrap_servers, TOPIC, len(DAMAGES), "read_uncommitted")
        broker.kill()
    return Written(directory, committed, uncommitted)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_partitions_are_repaired_or_refused(written: Written, tmp_path: Path, seed: int) -> None:
    """Each partition is damaged in another way between kill -9 and the next start; no wrong record is ever served."""
    random = Random(os.environ.get("ODRADEK_DAMAGE_SEED", seed))
    shutil.copytree(written.directory, tmp_path / "broker")
    for partition, damage in enumerate(DAMAGES):
        path = damage.apply(tmp_path / "broker" / "data" / f"{TOPIC}-{partition}", random)
        print(f"{partition}: {damage.name} {path.name}")
    with OdradekBroker(directory=tmp_path / "broker") as broker:
        complaints = []
        for isolation, before in (("read_committed", written.committed), ("read_uncommitted", written.uncommitted)):
            after = read_until_error(broker.bootstrap_servers, TOPIC, len(DAMAGES), isolation)
            for partition, damage in enumerate(DAMAGES):
                reported = check_read(after[partition], list(before[partition]), keeps_all=damage.keeps_all)
                complaints += [f"{isolation} after {damage.name} (partition {partition}): {each}" for each in reported]
        text = broker.log_text()
        print(text)
        assert "Traceback" not in text
    assert not complaints, shown(complaints)


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "meta.properties",
        "odradek-metadata.db",
        "odradek-producer-ids",
        f"{TOPIC}-0/partition.metadata",
    ],
)
def test_a_damaged_file_of_the_directory_is_repaired_or_named(written: Written, tmp_path: Path, name: str) -> None:
    random = Random(os.environ.get("ODRADEK_DAMAGE_SEED", name))
    shutil.copytree(written.directory, tmp_path / "broker")
    path = tmp_path / "broker" / "data" / name
    content = bytearray(path.read_bytes())
    for _ in range(max(1, len(content) // 500)):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    try:
        with OdradekBroker(directory=tmp_path / "broker") as broker:
            after = read_until_error(broker.bootstrap_servers, TOPIC, len(DAMAGES), "read_committed")
            text = broker.log_text()
    except BrokerFailedError as error:
        assert re.search(r"exit code [12]", str(error)), error
        assert path.name in str(error)
        assert "Traceback" not in str(error)
        return
    assert "Traceback" not in text, text
    complaints = []
    for partition, read in after.items():
        refused = path.name in text and f"{TOPIC}-{partition}" in name
        reported = check_read(read, list(written.committed[partition]), keeps_all=not refused)
        complaints += [f"partition {partition}: {each}" for each in reported]
    assert not complaints, shown(complaints)


def test_retention_and_deletion_free_a_disk_that_has_no_byte_left(
    tmp_path: Path, mounted: Callable[..., Disk], broker_on: Callable[..., OdradekBroker]
) -> None:
    """New names may need a block in their directory that is not available. The metadata store is on another disk."""
    disk = mounted(image_disk, "disk", 24 * MEBIBYTE)
    stores = tmp_path / "stores"
    broker = broker_on(
        log_dirs=f"{stores},{disk.path / 'data'}",
        log_retention_check_interval_ms="100",
        log_initial_task_delay_ms="0",
        log_segment_delete_delay_ms="100",
    )
    for topic in ("kept", "deleted"):
        # One partition in each of the two directories.
        create(broker, topic, 2)
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        for topic in ("kept", "deleted"):
            admin.set_config(topic, "segment.ms", "1")
    client = load("confluent")
    now_ms = int(time.time() * 1000)
    with client.Producer(broker.bootstrap_servers, ProducerOptions(idempotent=True)) as producer:
        for number in range(300):
            for topic in ("kept", "deleted"):
                for partition in range(2):
                    producer.produce(topic, [Message(b"x" * 1000, None, (), partition, now_ms + number * 10)])
    (on_disk,) = disk.path.glob("data/kept-*")
    partition = int(on_disk.name.rpartition("-")[2])
    assert len(list(on_disk.glob("*.log"))) > 250
    disk.fill()
    wait_until(lambda: error_of_a_write(broker, "kept", partition, 100_000) == KAFKA_STORAGE_ERROR, what="a full disk")
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.set_config("kept", "retention.ms", "1")
        admin.delete_topic("deleted")
    wait_until(lambda: error_of_a_write(broker, "kept", partition, 100_000) == 0, what="room for writes")
    wait_until(lambda: not list(disk.path.glob("data/deleted-*")), what="the end of the deleted topic")
    wait_until(lambda: len(list(on_disk.glob("*.log"))) <= 3, what="the end of the old segments")
    assert set(errors_of_log_dirs(broker).values()) == {0}
    assert "offline" not in broker.log_text()
    broker.restart()
    assert error_of_a_write(broker, "kept", partition) == 0
