"""Start of Apache Kafka on a data directory that Odradek has written.

Logs, indexes, snapshots and checkpoints are used unchanged. Apache Kafka keeps the cluster's metadata in a KRaft log:
the topics are created there first, and the topic ids of that log are written to the partitions.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.clients import load
from compat_tests.clients.common import wait_until

CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")
INTERNAL = ("__consumer_offsets", "__transaction_state")


def partitions_in(data_dir: Path) -> dict[str, int]:
    """Return the topics in a data directory with their numbers of partitions."""
    counts: dict[str, int] = {}
    for path in data_dir.iterdir():
        match = re.fullmatch(r"(.+)-(\d+)", path.name)
        if match and match[1] != "__cluster_metadata":
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


@contextmanager
def run_apache_kafka_on(data_dir: Path, work: Path, properties: Mapping[str, str]) -> Iterator[Any]:
    """Run Apache Kafka on a copy of a directory, which a broker has left after a clean stop."""
    topics = partitions_in(data_dir)
    counts = {
        "offsets.topic.num.partitions": str(topics.get("__consumer_offsets", 1)),
        "transaction.state.log.num.partitions": str(topics.get("__transaction_state", 1)),
    }
    with ApacheKafkaBroker({**properties, **counts}, directory=work) as kafka:
        with load("kafka_python").Admin(kafka.bootstrap_servers) as admin:
            for topic, count in topics.items():
                configs = {"cleanup.policy": "compact"} if topic in INTERNAL else {}
                admin.create_topic(topic, count, configs=configs)
            wait_until(lambda: partitions_in(kafka.data_dir) == topics, what="the partitions' directories")
        kafka.stop()
        for topic, count in topics.items():
            for partition in range(count):
                _put_in_place(data_dir / f"{topic}-{partition}", kafka.data_dir / f"{topic}-{partition}")
        for name in CHECKPOINTS:
            if (data_dir / name).exists():
                shutil.copy(data_dir / name, kafka.data_dir / name)
        kafka.start()
        yield kafka


def _put_in_place(ours: Path, theirs: Path) -> None:
    identity = (theirs / "partition.metadata").read_text()
    shutil.rmtree(theirs)
    shutil.copytree(ours, theirs)
    (theirs / "partition.metadata").write_text(identity)
