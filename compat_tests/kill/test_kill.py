"""kill -9 in a loop under load: no acknowledged record is lost or duplicated."""

import logging
import os
import random
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import TopicPartition

from compat_tests import limits
from compat_tests.clients import load
from compat_tests.clients.common import wait_until
from compat_tests.kill.files import check_directory
from compat_tests.kill.history import CommittedOffsets, Fate, Log, Sightings, check_log, shown
from compat_tests.kill.killer import kill_repeatedly
from compat_tests.kill.load import read_whole, request_until_loaded, running
from compat_tests.kill.readers import (
    AssignedReader,
    ConfluentGroupReader,
    KafkaPythonGroupReader,
    OffsetWatcher,
)
from compat_tests.kill.takeover import run_apache_kafka_on
from compat_tests.kill.transactional import (
    ConfluentTransactionalWriter,
    KafkaPythonTransactionalWriter,
    TransactionalWriter,
)
from compat_tests.kill.writers import (
    ConfluentWriter,
    KafkaPythonWriter,
    VerifiableProducerWriter,
    Writer,
    wait_for_answers,
    wait_for_first_answers,
)

pytestmark = pytest.mark.usefixtures("kafka_jars")

ROUNDS = int(os.environ.get("ODRADEK_KILL_ROUNDS", "10"))
TOPIC = "written-under-fire"
PARTITIONS = 3
GROUP = "reads-under-fire"
LEAST = 50
"""Acknowledged records that each writer must have."""
BROKER = {
    # Small files, so that kills occur during rolls and just after snapshots and indexes were written.
    "log.segment.bytes": "1048576",
    "log.roll.ms": "3000",
    "log.index.interval.bytes": "1024",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "auto.create.topics.enable": "false",
}
# A broker that takes longer to start needs longer to make progress before it is killed.
RUN_TIMES = {"odradek": {}, "kafka": {"longest_run_s": 8.0}}


@pytest.fixture
def seed() -> str:
    """The seed of kills and writes; ODRADEK_KILL_SEED repeats a run."""
    return os.environ.get("ODRADEK_KILL_SEED") or secrets.token_hex(4)


@pytest.fixture(autouse=True)
def quiet_clients() -> Iterator[None]:
    """Silence kafka-python, which logs every lost connection as an error; here they are intended."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.fixture
def killed(start_broker: Callable[..., Any], tmp_path: Path, seed: str) -> Iterator[Any]:
    """A broker to be killed. After a failure its directory is kept, and the command to repeat the test is printed."""
    broker = start_broker(BROKER, directory=tmp_path / "broker")
    try:
        yield broker
    finally:
        tail = "\n".join(broker.log_text().splitlines()[-40:])
        print(f"seed: ODRADEK_KILL_SEED={seed}\ndirectory: {broker.directory}\nthe broker's log ends:\n{tail}")


@pytest.mark.timeout(limits.KILLS_S)
def test_nothing_acknowledged_is_lost(backend: str, killed: Any, tmp_path: Path, seed: str) -> None:
    """Every writer's acknowledged records exist, every reader read existing records, and the files are consistent."""
    bootstrap = killed.bootstrap_servers
    with load("kafka_python").Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    writers = every_writer(bootstrap, tmp_path, seed)
    seen, uncommitted, committed = Sightings(), Sightings(), CommittedOffsets()
    readers = [
        ConfluentGroupReader("confluent-member", bootstrap, TOPIC, GROUP, seen, committed),
        KafkaPythonGroupReader("python-member", bootstrap, TOPIC, GROUP, seen, committed),
        AssignedReader("assigned", bootstrap, TOPIC, PARTITIONS, uncommitted),
        OffsetWatcher("watcher", bootstrap, TOPIC, PARTITIONS, GROUP, committed),
    ]
    with running(readers):
        with running(writers):
            wait_for_first_answers(writers)
            plain = [writer for writer in writers if not isinstance(writer, TransactionalWriter)]
            kill_repeatedly(killed, ROUNDS, random.Random(seed), lambda: wait_for_answers(plain), **RUN_TIMES[backend])
            # On a slow machine the runs between kills are too short for many transactions.
            wait_until(lambda: all(has_written(each) for each in writers), limits.ANSWERS_S, "each writer to write")
        log = read_whole(bootstrap, TOPIC, PARTITIONS, "read_committed")
        end = {partition: records[-1].offset + 1 for partition, records in log.items()}
        wait_until(lambda: committed.least() == end, limits.CAUGHT_UP_S, lambda: f"{committed.least()} to reach {end}")
    served = read_served(bootstrap)
    ledgers = [writer.ledger for writer in writers]
    complaints = [f"{ledger.writer}: {trouble}" for ledger in ledgers for trouble in ledger.troubles]
    complaints += [trouble for reader in readers for trouble in reader.troubles]
    complaints += check_log(ledgers, served.committed, committed_only=True)
    complaints += check_log(ledgers, served.uncommitted, committed_only=False)
    complaints += seen.check(served.committed, whole=True)
    complaints += uncommitted.check(served.uncommitted, whole=False)
    complaints += committed.complaints
    complaints += [f"{each.writer} wrote too little" for each in ledgers if each.count(Fate.ACKNOWLEDGED) < LEAST]
    for writer in writers:
        counts = [(fate.value, writer.ledger.count(fate)) for fate in Fate]
        print(writer.ledger.writer, *counts, *Counter(writer.failures).items(), sep="\n    ")
    assert not complaints, f"{len(complaints)} violations\n{shown(complaints)}"
    killed.stop()
    check_files(killed.data_dir, served)
    if backend == "odradek":
        with run_apache_kafka_on(killed.data_dir, tmp_path / "apache-kafka", BROKER) as kafka:
            assert read_served(kafka.bootstrap_servers) == served
    shutil.rmtree(killed.data_dir)


def every_writer(bootstrap: str, work: Path, seed: str) -> list[Any]:
    common: dict[str, Any] = {"bootstrap": bootstrap, "topic": TOPIC, "partitions": PARTITIONS, "seed": seed}
    return [
        ConfluentWriter("confluent", once=False, **common),
        ConfluentWriter("confluent-idempotent", once=True, **common),
        ConfluentTransactionalWriter("confluent-transactional", once=True, **common),
        KafkaPythonWriter("python", once=False, **common),
        KafkaPythonWriter("python-idempotent", once=True, **common),
        KafkaPythonTransactionalWriter("python-transactional", once=True, **common),
        VerifiableProducerWriter("1", bootstrap, TOPIC, work, once=False),
        VerifiableProducerWriter("2", bootstrap, TOPIC, work, once=True),
    ]


def has_written(writer: Any) -> bool:
    """Return whether a writer has enough records, or an error; that of Java reports its records at its end."""
    ledger = writer.ledger
    return not isinstance(writer, Writer) or bool(ledger.troubles) or ledger.count(Fate.ACKNOWLEDGED) >= LEAST


class Served(NamedTuple):
    """The data that a broker serves: records, producers by partition, transactions by id, committed offsets."""

    committed: Log
    uncommitted: Log
    producers: dict[int, Any]
    transactions: dict[str, Any]
    offsets: dict[tuple[str, int], int]


def read_served(bootstrap: str) -> Served:
    with load("kafka_python").Admin(bootstrap) as admin:
        partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        producers = admin._admin.describe_producers(partitions)
        # A broker that has just started may not have begun to load yet.
        transactions = wait_until(
            lambda: request_until_loaded(transactions_of, admin._admin), limits.READ_S, "transactions"
        )
        offsets = wait_until(lambda: request_until_loaded(admin.group_offsets, GROUP), limits.READ_S, "offsets")
        return Served(
            read_whole(bootstrap, TOPIC, PARTITIONS, "read_committed"),
            read_whole(bootstrap, TOPIC, PARTITIONS, "read_uncommitted"),
            {p.partition: sorted(state.active_producers) for p, state in producers.items()},
            transactions,
            offsets,
        )


def transactions_of(admin: Any) -> dict[str, Any]:
    """Return the descriptions of all transactional ids."""
    ids = [each.transactional_id for listed in admin.list_transactions().values() for each in listed]
    return admin.describe_transactions(ids)


def check_files(data_dir: Path, served: Served) -> None:
    """Check that Kafka's DumpLogSegments agrees with the served data, and every file with the logs."""
    dumped, complaints = check_directory(data_dir)
    assert not complaints, f"{len(complaints)} files are wrong\n{shown(complaints)}"
    for partition, records in served.uncommitted.items():
        values = dumped[f"{TOPIC}-{partition}"].values
        assert values == {record.offset: record.value.decode() for record in records}
    assert any(partition.replay.aborted for partition in dumped.values())
