"""`log dump`: the contents of log directories, partitions and single files, as rows in their order in the files."""

from collections.abc import Callable, Iterator
from typing import Final

from odradek.log.producers.snapshots import CorruptSnapshotError, decode_snapshot
from odradek.log.producers.table import RECORD
from odradek.log.segments.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from odradek.log.segments.transaction_index import CorruptTransactionIndexError
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import MalformedFileError
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.log_directory import ALL_CHECKPOINTS
from odradek.tools.logs.decoding import Row
from odradek.tools.logs.directories import PartitionFiles, base_offset, list_partition_directories, parse_partition
from odradek.tools.logs.dump_batches import DumpOptions, RecordLimit, dump_batches
from odradek.tools.logs.index_files import open_offset_index, open_time_index, read_transactions

KRAFT_SNAPSHOT_SUFFIX: Final = ".checkpoint"
_MAX_SEQUENCE: Final = 0x7FFFFFFF


def dump_offset_index(fs: FileSystem, path: str) -> Iterator[Row]:
    base = base_offset(_name(path))
    for _, relative, position in open_offset_index(fs, path):
        yield {"type": "index_entry", "offset": base + relative, "position": position}


def dump_time_index(fs: FileSystem, path: str) -> Iterator[Row]:
    base = base_offset(_name(path))
    for _, timestamp, relative in open_time_index(fs, path):
        yield {"type": "time_index_entry", "timestamp": timestamp, "offset": base + relative}


def dump_transaction_index(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        for _, entry in read_transactions(fs, path):
            yield {"type": "aborted_transaction", "version": 0, **entry._asdict()}
    except CorruptTransactionIndexError as error:
        yield _error(str(error))


def dump_snapshot(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        records = decode_snapshot(fs.read_bytes(path))
    except CorruptSnapshotError as error:
        yield _error(str(error))
        return
    for producer_id, epoch, sequence, last, delta, timestamp, coordinator_epoch, start in RECORD.iter_unpack(records):
        row: Row = {
            "type": "producer",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "coordinator_epoch": coordinator_epoch,
            "current_txn_first_offset": start if start >= 0 else None,
            "last_timestamp": timestamp,
        }
        if last >= 0:
            first = sequence - delta
            row["first_sequence"] = first if first >= 0 or sequence < 0 else first + _MAX_SEQUENCE + 1
            row |= {"last_sequence": sequence, "last_offset": last, "offset_delta": delta, "timestamp": timestamp}
        yield row


def dump_leader_epochs(fs: FileSystem, path: str) -> Iterator[Row]:
    for epoch, start_offset in checkpoints.read_leader_epochs(fs, path):
        yield {"type": "leader_epoch", "epoch": epoch, "start_offset": start_offset}


def dump_offsets(fs: FileSystem, path: str) -> Iterator[Row]:
    for (topic, partition), offset in checkpoints.read_offsets(fs, path).items():
        yield {"type": "offset", "topic": topic, "partition": partition, "offset": offset}


def dump_partition_metadata(fs: FileSystem, path: str) -> Iterator[Row]:
    topic_id = checkpoints.read_partition_metadata(fs, path.rpartition("/")[0])
    if topic_id is not None:
        yield {"type": "partition_metadata", "version": 0, "topic_id": checkpoints.encode_uuid(topic_id)}


def dump_meta_properties(fs: FileSystem, path: str) -> Iterator[Row]:
    meta = checkpoints.read_meta_properties(fs, path.rpartition("/")[0])
    if meta is None:
        return
    directory_id = None if meta.directory_id is None else checkpoints.encode_uuid(meta.directory_id)
    row: Row = {"type": "meta_properties", "version": meta.version, "cluster_id": meta.cluster_id}
    yield row | {"node_id": meta.node_id, "directory_id": directory_id, **meta.others}


def dump_clean_shutdown(fs: FileSystem, path: str) -> Iterator[Row]:
    epoch = checkpoints.read_clean_shutdown(fs, path.rpartition("/")[0])
    if epoch is not None:
        yield {"type": "clean_shutdown", "broker_epoch": epoch}


def dump_producer_ids(fs: FileSystem, path: str) -> Iterator[Row]:
    next_id = checkpoints.read_next_producer_id(fs, path.rpartition("/")[0])
    yield {"type": "producer_ids", "next_producer_id": next_id}


Reader = Callable[[FileSystem, str], Iterator[Row]]
"""Reads one file. Raises OSError, MalformedFileError."""

LOG_KIND: Final = "log"
KINDS: Final = ("log", "index", "timeindex", "txnindex", "snapshot", "checkpoint", "metadata")
"""Kinds of files, for the selection on the command line."""
_BY_SUFFIX: Final[dict[str, tuple[str, Reader]]] = {
    INDEX_SUFFIX: ("index", dump_offset_index),
    TIME_INDEX_SUFFIX: ("timeindex", dump_time_index),
    TRANSACTION_INDEX_SUFFIX: ("txnindex", dump_transaction_index),
    SNAPSHOT_SUFFIX: ("snapshot", dump_snapshot),
}
_BY_NAME: Final[dict[str, tuple[str, Reader]]] = {
    checkpoints.LEADER_EPOCHS_FILE: ("checkpoint", dump_leader_epochs),
    checkpoints.PARTITION_METADATA_FILE: ("metadata", dump_partition_metadata),
    checkpoints.META_PROPERTIES_FILE: ("metadata", dump_meta_properties),
    checkpoints.CLEAN_SHUTDOWN_FILE: ("metadata", dump_clean_shutdown),
    checkpoints.PRODUCER_IDS_FILE: ("metadata", dump_producer_ids),
    **dict.fromkeys(ALL_CHECKPOINTS, ("checkpoint", dump_offsets)),
}
_TEMPORARY_SUFFIXES: Final = (".deleted", ".cleaned", ".swap")


class UnknownFileError(Exception):
    """A file that is no file of a log directory."""


def kind_of(name: str) -> str | None:
    """Return the kind of a file by its name; None for a file that is not dumped."""
    stem = _without_temporary_suffix(name)
    if stem in _BY_NAME:
        return _BY_NAME[stem][0]
    if base_offset(stem) < 0:
        return None
    suffix = "." + stem.rpartition(".")[2]
    if suffix in (LOG_SUFFIX, KRAFT_SNAPSHOT_SUFFIX):
        return LOG_KIND
    return _BY_SUFFIX[suffix][0] if suffix in _BY_SUFFIX else None


def dump_file(fs: FileSystem, path: str, options: DumpOptions, limit: RecordLimit) -> Iterator[Row]:
    """Yield the rows of one file. Raises UnknownFileError, OSError."""
    name = _without_temporary_suffix(_name(path))
    kind = kind_of(name)
    if kind is None:
        raise UnknownFileError(f"{path} is no file of a log directory")
    if kind == LOG_KIND:
        partition = parse_partition(path.rpartition("/")[0])
        yield from dump_batches(fs, path, partition.topic if partition else "", options, limit)
        return
    _, read = _BY_NAME[name] if name in _BY_NAME else _BY_SUFFIX["." + name.rpartition(".")[2]]
    try:
        yield from read(fs, path)
    except MalformedFileError as error:
        yield _error(str(error).removeprefix(f"{error.path}: "))


def list_files(
    fs: FileSystem, path: str, kinds: frozenset[str], is_selected: Callable[[PartitionFiles], bool]
) -> Iterator[str]:
    """Yield the files to dump in `path`, a file, a partition's directory or a log directory. Raises OSError."""
    is_directory = fs.is_directory(path)
    partition = parse_partition(path if is_directory else path.rpartition("/")[0])
    if partition is not None and not is_selected(partition):
        return
    if not is_directory:
        yield path
        return
    # A file that waits for its deletion, or is not complete, is dumped only if it is named.
    names = [name for name in fs.list_names(path) if kind_of(name) in kinds and _without_temporary_suffix(name) == name]
    # Segments in order, each followed by its indexes; then the other files.
    names.sort(key=lambda name: (base_offset(name) < 0, base_offset(name), kind_of(name) != LOG_KIND, name))
    for name in names:
        if not fs.is_directory(f"{path}/{name}"):
            yield f"{path}/{name}"
    for contained in list_partition_directories(fs, path):
        if is_selected(contained):
            try:
                yield from list_files(fs, contained.path, kinds, is_selected)
            except FileNotFoundError:
                # The broker has deleted the partition meanwhile.
                continue


def list_topics(fs: FileSystem, path: str) -> set[str]:
    """Return the topics of the partitions in `path`, a file, a partition's directory or a log directory."""
    directory = path if fs.is_directory(path) else path.rpartition("/")[0]
    partition = parse_partition(directory)
    if partition is not None:
        return {partition.topic}
    return {each.topic for each in list_partition_directories(fs, directory)}


def needed_segments(files: list[str], from_offset: int) -> list[str]:
    """Omit segments that end at or below `from_offset`, because another one of their partition begins there."""
    needed = []
    for path, following in zip(files, [*files[1:], ""], strict=True):
        is_next = following.rpartition("/")[0] == path.rpartition("/")[0]
        if not (is_next and 0 <= base_offset(_name(following)) <= from_offset):
            needed.append(path)
    return needed


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _without_temporary_suffix(name: str) -> str:
    for suffix in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _error(problem: str) -> Row:
    return {"type": "error", "problem": problem}
