"""Random faults of three brokers, ZooKeeper and their links under load from confluent-kafka, kafka-python and Java.

        python -m compat_tests.cluster.chaos --minutes 30

Idempotent and transactional producers write with acks=all, consumers read with both isolation levels, and a Java
process copies a partition in transactions. At the end nothing that was acknowledged is lost, nothing is duplicated, no
aborted record has been read, and the logs of all replicas are equal byte for byte.
"""

import argparse
import contextlib
import logging
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests.apache_kafka.jars import zookeeper_classpath
from compat_tests.clients.common import wait_until
from compat_tests.cluster.copying import PartitionCopier, difference
from compat_tests.cluster.faults import Faults, broker_name, zookeeper_name
from compat_tests.cluster.links import Links
from compat_tests.cluster.proxies import HOST
from compat_tests.cluster.replicas import wait_until_equal, wait_until_in_sync
from compat_tests.kill.history import Fate, Ledger, Sightings, check_log, shown
from compat_tests.kill.load import read_whole, running
from compat_tests.kill.readers import AssignedReader
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
from compat_tests.limits import ANSWERS_S
from odradek.testing_cluster import OdradekCluster

TOPIC, INPUT, COPY = "written-during-faults", "input", "copy"
TOPICS = {TOPIC: 3, INPUT: 1, COPY: 1}
"""Topics and their partitions. One writer has the input of the copier, which does not expect transactions there."""
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
ISOLATIONS = ("read_uncommitted", "read_committed")
REPORT_S = 60
LEAST = 50
"""Acknowledged records that each writer must have."""
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "log.segment.bytes": "1048576",
    # Each replica compacts its log at another moment, and they are compared byte for byte.
    "log.cleaner.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Chaos:
    """A cluster behind proxies, its clients, and faults that are determined by a seed."""

    def __init__(
        self,
        directory: Path,
        seed: str,
        zookeeper_servers: int,
        log: Callable[[str], object],
        first_fault: str | None = None,
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._log = log
        self._cluster = OdradekCluster(
            PROPERTIES,
            directory=directory / "cluster",
            zookeeper_servers=zookeeper_servers,
            zookeeper_class_path=zookeeper_classpath(),
        )
        brokers = self._cluster.brokers.items()
        self._links = Links({broker_name(number): f"{broker.directory}/" for number, broker in brokers})
        self.faults = Faults(self._cluster, self._links, Random(seed), log, first_fault)
        self.acknowledged: dict[str, int] = {}

    def run(self, seconds: float) -> None:
        """Run clients and faults for some time, then check all records. Raises AssertionError."""
        with self._links:
            self._place_proxies()
            with self._cluster, _quiet_clients():
                self._run_on_cluster(seconds)
                for number in self._cluster.brokers:
                    self._cluster.kill(number)

    def _place_proxies(self) -> None:
        assert self._cluster.zookeeper is not None
        servers = enumerate(self._cluster.zookeeper.servers)
        connect = [f"{HOST}:{self._links.add(zookeeper_name(number), server.port)}" for number, server in servers]
        for number, broker in self._cluster.brokers.items():
            port = int(broker.properties["listeners"].rpartition(":")[2])
            broker.properties["advertised.listeners"] = (
                f"PLAINTEXT://{HOST}:{self._links.add(broker_name(number), port)}"
            )
            broker.properties["zookeeper.connect"] = ",".join(connect)

    def _run_on_cluster(self, seconds: float) -> None:
        servers = self._cluster.bootstrap_servers
        seen = {isolation: Sightings() for isolation in ISOLATIONS}
        readers = [
            AssignedReader(
                isolation,
                servers,
                TOPIC,
                TOPICS[TOPIC],
                of,
                isolation=isolation,
                log_path=self._directory / f"reader-{isolation}.log",
            )
            for isolation, of in seen.items()
        ]
        writers = self._make_writers(servers)
        source = ConfluentWriter("input", servers, INPUT, TOPICS[INPUT], once=True, seed=self._seed)
        copier = PartitionCopier(servers, INPUT, COPY, self._directory)
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers.split(","))) as admin:
            admin.create_topics([NewTopic(topic, partitions, 3) for topic, partitions in TOPICS.items()])
            for topic in TOPICS:
                wait_until_in_sync(admin, topic)
            everything = [*writers, source]
            with running([copier]):
                with running(readers), running(everything):
                    wait_for_first_answers(everything)
                    self._run_faults(seconds, everything, [*readers, copier])
                    # On a slow machine there are few acknowledgements during the faults.
                    wait_until(lambda: all(map(has_written, everything)), ANSWERS_S, "each writer to write")
                    wait_for_answers([writer for writer in everything if not isinstance(writer, TransactionalWriter)])
                # The copier's last process ends at the end that a leader lists: it must not be one that was replaced.
                for topic in (*TOPICS, *INTERNAL_TOPICS):
                    wait_until_in_sync(admin, topic)
            states = {topic: wait_until_in_sync(admin, topic) for topic in (*TOPICS, *INTERNAL_TOPICS)}
        complaints = [trouble for reader in readers for trouble in reader.troubles] + copier.troubles
        for isolation, of in seen.items():
            log = read_whole(servers, TOPIC, TOPICS[TOPIC], isolation)
            complaints += check_log(self._ledgers(writers), log, committed_only=isolation == "read_committed")
            complaints += of.check(log, whole=False)
        written, copied = (read_whole(servers, topic, 1, "read_committed") for topic in (INPUT, COPY))
        complaints += check_log(self._ledgers([source]), written, committed_only=True)
        assert not complaints, f"{len(complaints)} violations\n{shown(complaints)}"
        assert [record.value for record in copied[0]] == [record.value for record in written[0]], (
            f"the copy differs after {copier.runs} processes: {difference(written[0], copied[0])}"
        )
        directories = {number: broker.data_dir for number, broker in self._cluster.brokers.items()}
        for topic, state in states.items():
            wait_until_equal(directories, topic, state)
        self._report(everything, copier)

    def _make_writers(self, servers: str) -> list[Any]:
        common: dict[str, Any] = {"bootstrap": servers, "topic": TOPIC, "partitions": TOPICS[TOPIC]}
        common |= {"once": True, "seed": self._seed}
        return [
            ConfluentWriter("confluent", **common),
            ConfluentTransactionalWriter("confluent-transactional", **common),
            KafkaPythonWriter("python", **common),
            KafkaPythonTransactionalWriter("python-transactional", **common),
            VerifiableProducerWriter("1", servers, TOPIC, self._directory, once=True),
        ]

    @staticmethod
    def _ledgers(writers: list[Any]) -> list[Ledger]:
        return [writer.ledger for writer in writers]

    def _run_faults(self, seconds: float, writers: list[Any], others: list[Any]) -> None:
        next_report_at = time.monotonic() + REPORT_S

        def check() -> None:
            nonlocal next_report_at
            troubles = [f"{each.writer}: {trouble}" for each in self._ledgers(writers) for trouble in each.troubles]
            troubles += [trouble for other in others for trouble in other.troubles]
            assert not troubles, shown(troubles)
            if time.monotonic() > next_report_at:
                next_report_at += REPORT_S
                sent = {each.writer: len(each.entries) for each in self._ledgers(writers)}
                self._log(f"{self.faults.counts.total()} faults; sent {sent}")

        try:
            self.faults.run(seconds, check)
        finally:
            self.faults.end_all()

    def _report(self, writers: list[Any], copier: PartitionCopier) -> None:
        for writer in writers:
            ledger = writer.ledger
            self.acknowledged[ledger.writer] = ledger.count(Fate.ACKNOWLEDGED)
            failures = Counter(writer.failures).most_common(3)
            self._log(f"{ledger.writer}: {[(fate.value, ledger.count(fate)) for fate in Fate]} {failures}")
        self._log(f"copied in {copier.runs} runs, of which {copier.failures} failed")

    def log_text(self) -> str:
        """Return the logs of all brokers."""
        return self._cluster.log_text()


def has_written(writer: Any) -> bool:
    """Return whether a writer has enough acknowledgements, of which a Java process notes its own at its end."""
    return not isinstance(writer, Writer) or writer.ledger.count(Fate.ACKNOWLEDGED) >= LEAST


@contextlib.contextmanager
def _quiet_clients() -> Iterator[None]:
    """Silence kafka-python, which logs every lost connection as an error; here they are intended."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="determines the faults, but not their effects")
    parser.add_argument("--zookeeper-servers", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="holds data and logs; by default a temporary directory")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="odradek-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - started_s:7.1f} s: {line}", flush=True)

    log(f"--seed {options.seed} --directory {directory}")
    chaos = Chaos(directory, options.seed, options.zookeeper_servers, log)
    try:
        chaos.run(options.minutes * 60)
    except AssertionError as error:
        log(f"failed: {error}")
        return 1
    log(f"nothing was lost or duplicated in {dict(chaos.faults.counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
