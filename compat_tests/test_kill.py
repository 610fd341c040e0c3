"""kill -9 in a loop under load: nothing acknowledged is lost, and nothing is there twice that must not be."""

import logging
import os
import random
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import processes
from compat_tests.clients import load
from compat_tests.clients.common import wait_until
from compat_tests.kill.history import CommittedOffsets, Fate, Sightings, check_log, shown
from compat_tests.kill.killer import kill_again_and_again
from compat_tests.kill.load import read_whole, running
from compat_tests.kill.readers import (
    AssignedReader,
    ConfluentGroupReader,
    KafkaPythonGroupReader,
    OffsetWatcher,
)
from compat_tests.kill.transactional import ConfluentTransactionalWriter, KafkaPythonTransactionalWriter
from compat_tests.kill.writers import (
    ConfluentWriter,
    KafkaPythonWriter,
    VerifiableProducerWriter,
    wait_for_first_answers,
)

pytestmark = pytest.mark.usefixtures("kafka_jars")

ROUNDS = int(os.environ.get("ODRADEK_KILL_ROUNDS", "50"))
TOPIC = "written-under-fire"
PARTITIONS = 3
GROUP = "reads-under-fire"
BROKER = {
    # Small files, so that a kill meets rolls, snapshots and indexes that have just been made.
    "log.segment.bytes": "1048576",
    "log.roll.ms": "3000",
    "log.index.interval.bytes": "1024",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "auto.create.topics.enable": "false",
}
# A broker that takes longer to start needs longer to get anything done before it is killed.
LIVES = {"odradek": {}, "kafka": {"longest_life_s": 8.0}}


@pytest.fixture
def seed() -> str:
    """Decides when the broker is killed and what is written; ODRADEK_KILL_SEED repeats one."""
    return os.environ.get("ODRADEK_KILL_SEED") or secrets.token_hex(4)


@pytest.fixture(autouse=True)
def quiet_clients() -> Iterator[None]:
    """kafka-python logs every lost connection as an error; here that is what is supposed to happen."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.fixture
def killed(start_broker: Callable[..., Any], tmp_path: Path, seed: str, request: Any) -> Iterator[Any]:
    """A broker to be killed. Where the test fails its directory stays, and how to repeat it is told."""
    listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{processes.lasting_port()}"}
    backend = request.getfixturevalue("backend")
    broker = start_broker({**BROKER, **(listeners if backend == "odradek" else {})}, directory=tmp_path / "broker")
    failed_before = request.session.testsfailed
    try:
        yield broker
    finally:
        tail = "\n".join(broker.log_text().splitlines()[-40:])
        print(f"seed: ODRADEK_KILL_SEED={seed}\ndirectory: {broker.directory}\nthe broker's log ends:\n{tail}")
        if request.session.testsfailed == failed_before and request.node.stash.get(PASSED, False):
            shutil.rmtree(tmp_path / "broker", ignore_errors=True)


PASSED = pytest.StashKey[bool]()


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost(backend: str, killed: Any, tmp_path: Path, seed: str) -> None:
    bootstrap = killed.bootstrap_servers
    with load("kafka_python").Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    writers = [
        ConfluentWriter("confluent", bootstrap, TOPIC, PARTITIONS, once=False, seed=seed),
        ConfluentWriter("confluent-idempotent", bootstrap, TOPIC, PARTITIONS, once=True, seed=seed),
        KafkaPythonWriter("python", bootstrap, TOPIC, PARTITIONS, once=False, seed=seed),
        KafkaPythonWriter("python-idempotent", bootstrap, TOPIC, PARTITIONS, once=True, seed=seed),
        ConfluentTransactionalWriter("confluent-transactional", bootstrap, TOPIC, PARTITIONS, once=True, seed=seed),
        KafkaPythonTransactionalWriter("python-transactional", bootstrap, TOPIC, PARTITIONS, once=True, seed=seed),
        VerifiableProducerWriter("1", bootstrap, TOPIC, tmp_path, once=False),
        VerifiableProducerWriter("2", bootstrap, TOPIC, tmp_path, once=True),
    ]
    seen, committed = Sightings(), CommittedOffsets()
    readers = [
        ConfluentGroupReader("confluent-member", bootstrap, TOPIC, GROUP, seen, committed),
        KafkaPythonGroupReader("python-member", bootstrap, TOPIC, GROUP, seen, committed),
        uncommitted := AssignedReader("assigned", bootstrap, TOPIC, PARTITIONS, Sightings()),
        OffsetWatcher("watcher", bootstrap, TOPIC, PARTITIONS, GROUP, committed),
    ]
    with running(readers):
        with running(writers):
            wait_for_first_answers(writers)
            kill_again_and_again(killed, ROUNDS, random.Random(seed), **LIVES[backend])
        log = read_whole(bootstrap, TOPIC, PARTITIONS, "read_committed")
        end = {partition: records[-1].offset + 1 for partition, records in log.items()}
        wait_until(lambda: committed.least() == end, 30, lambda: f"{committed.least()} to reach {end}")
    everything = read_whole(bootstrap, TOPIC, PARTITIONS, "read_uncommitted")
    ledgers = [writer.ledger for writer in writers]
    complaints = [f"{ledger.writer}: {trouble}" for ledger in ledgers for trouble in ledger.troubles]
    complaints += [trouble for reader in readers for trouble in reader.troubles]
    complaints += check_log(ledgers, log, committed_only=True)
    complaints += check_log(ledgers, everything, committed_only=False)
    complaints += seen.check(log, whole=True)
    complaints += uncommitted._seen.check(everything, whole=False)
    complaints += committed.complaints
    for ledger in ledgers:
        print(ledger.writer, *((fate.value, ledger.count(fate)) for fate in Fate))
    for writer in writers:
        print(writer.ledger.writer, *Counter(writer.failures).items(), sep="\n    ")
    complaints += [f"{w.ledger.writer} wrote too little" for w in writers if w.ledger.count(Fate.ACKNOWLEDGED) < 100]
    assert not complaints, f"{len(complaints)} promises broken\n{shown(complaints)}"
