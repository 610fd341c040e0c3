"""Damage to the files of a data directory, and the records that may be read afterwards."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from compat_tests.kill.history import Stored
from compat_tests.kill.writers import KAFKA_PYTHON

STUCK_SECONDS = 10.0
"""Without a record for so long a read has ended: several times the longest pause of a busy machine."""
BASE_OFFSET_BYTES = 8
CRC_STARTS_AT = 21
ABORTED_TRANSACTION_BYTES = 34


class Damage(NamedTuple):
    """Damage to a partition's directory; `keeps_all`: every record must be readable afterwards."""

    name: str
    apply: Callable[[Path, Random], Path]
    keeps_all: bool


def _flip(path: Path, random: Random, first: int = 0) -> Path:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[random.randrange(first, len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return path


def _files(partition: Path, suffix: str) -> list[Path]:
    return sorted(path for path in partition.iterdir() if path.suffix == suffix and path.stat().st_size)


def _last_log(partition: Path, random: Random) -> Path:
    """Flip a bit, but not of the last base offset, which no checksum covers: only the next batch shows a wrong one."""
    path = _files(partition, ".log")[-1]
    content = bytearray(path.read_bytes())
    *_, (last, _) = _batches(content)
    content[random.choice([*range(last), *range(last + BASE_OFFSET_BYTES, len(content))])] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return path


def _batches(content: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Iterate over the positions of a log's batches and of their ends."""
    position = 0
    while position < len(content):
        end = position + 12 + int.from_bytes(content[position + 8 : position + 12])
        yield position, end
        position = end


def _earlier_log(partition: Path, random: Random) -> Path:
    """Flip a bit covered by a batch's checksum: the bytes before it are unprotected, as in Apache Kafka."""
    path = random.choice(_files(partition, ".log")[:-1])
    content = bytearray(path.read_bytes())
    covered = [at for position, end in _batches(content) for at in range(position + CRC_STARTS_AT, end)]
    content[random.choice(covered)] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return path


def _cut_last_log(partition: Path, random: Random) -> Path:
    path = _files(partition, ".log")[-1]
    with open(path, "r+b") as file:
        file.truncate(random.randrange(path.stat().st_size))
    return path


def _append_to_last_log(partition: Path, random: Random) -> Path:
    path = _files(partition, ".log")[-1]
    with open(path, "ab") as file:
        file.write(random.choice([bytes(random.randrange(1, 5000)), random.randbytes(random.randrange(1, 5000))]))
    return path


def _any(suffix: str) -> Callable[[Path, Random], Path]:
    def apply(partition: Path, random: Random) -> Path:
        return _flip(random.choice(_files(partition, suffix)), random)

    return apply


def _cut(suffix: str) -> Callable[[Path, Random], Path]:
    def apply(partition: Path, random: Random) -> Path:
        path = random.choice(_files(partition, suffix))
        with open(path, "r+b") as file:
            file.truncate(random.randrange(path.stat().st_size))
        return path

    return apply


def _cut_transaction_index(partition: Path, random: Random) -> Path:
    """Cut within an entry: the format cannot show that whole entries are missing."""
    path = random.choice(_files(partition, ".txnindex"))
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(random.choice([n for n in range(size) if n % ABORTED_TRANSACTION_BYTES]))
    return path


def _last_snapshot(partition: Path, random: Random) -> Path:
    return _flip(_files(partition, ".snapshot")[-1], random)


def _no_snapshots(partition: Path, random: Random) -> Path:
    for path in _files(partition, ".snapshot"):
        path.unlink()
    return partition


def _leftovers(partition: Path, random: Random) -> Path:
    """Create files that an interrupted roll, deletion or compaction leaves behind."""
    log = _files(partition, ".log")[0]
    for suffix in (".deleted", ".cleaned"):
        shutil.copy(log, log.with_name(log.name + suffix))
    shutil.copy(log, log.with_name(f"{random.randrange(1 << 40, 1 << 41):020d}.log.cleaned"))
    return partition


def _named(name: str) -> Callable[[Path, Random], Path]:
    return lambda partition, random: _flip(partition / name, random)


DAMAGES = (
    Damage("a bit of the last segment", _last_log, False),
    Damage("a bit of an earlier segment", _earlier_log, False),
    Damage("the last segment cut", _cut_last_log, False),
    Damage("bytes after the last segment", _append_to_last_log, True),
    Damage("a bit of an index", _any(".index"), True),
    Damage("an index cut", _cut(".index"), True),
    Damage("a bit of a time index", _any(".timeindex"), True),
    Damage("a bit of a transaction index", _any(".txnindex"), True),
    Damage("a transaction index cut", _cut_transaction_index, True),
    Damage("a bit of the last producer snapshot", _last_snapshot, True),
    Damage("no producer snapshots", _no_snapshots, True),
    Damage("leftovers", _leftovers, True),
    Damage("a bit of the leader epochs", _named("leader-epoch-checkpoint"), True),
)


class Read(NamedTuple):
    """The records read from a partition, and the error that ended the read."""

    records: list[Stored]
    error: str | None


def read_until_error(bootstrap: str, topic: str, partitions: int, isolation: str) -> dict[int, Read]:
    """Read each partition to its end, or until an error or the lack of further records."""
    # Not with librdkafka: invalid bytes can crash its process.
    consumer = KafkaConsumer(
        **KAFKA_PYTHON,
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="none",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
        check_crcs=True,
    )
    try:
        return {partition: _read_one(consumer, TopicPartition(topic, partition)) for partition in range(partitions)}
    finally:
        consumer.close()


def _read_one(consumer: KafkaConsumer, partition: TopicPartition) -> Read:
    records: list[Stored] = []
    try:
        end = consumer.end_offsets([partition])[partition]
        consumer.assign([partition])
        consumer.seek(partition, 0)
        received_at = time.monotonic()
        while consumer.position(partition) < end:
            for message in consumer.poll(timeout_ms=100).get(partition, ()):
                received_at = time.monotonic()
                records.append(Stored(message.offset, message.value))
            if time.monotonic() > received_at + STUCK_SECONDS:
                return Read(records, f"no further records at {consumer.position(partition)} of {end}")
    except KafkaError as error:
        return Read(records, repr(error))
    return Read(records, None)


def check_read(read: Read, original: list[Stored], *, keeps_all: bool) -> list[str]:
    """No record differs from the one written at its offset; none is missing before the last one read."""
    known = dict(original)
    complaints = [
        f"offset {record.offset} is {record.value!r} and was {known.get(record.offset)!r}"
        for record in read.records
        if known.get(record.offset) != record.value
    ]
    if keeps_all and len(read.records) != len(original):
        complaints.append(f"{len(read.records)} of {len(original)} records were read; {read.error}")
    elif not keeps_all and read.records != original[: len(read.records)] and not complaints:
        complaints.append("records are missing before others that were read")
    return complaints
