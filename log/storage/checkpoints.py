"""The small text files of a log directory, in Apache Kafka's formats.

Checkpoints (recovery-point-offset-checkpoint, replication-offset-checkpoint, log-start-offset-checkpoint,
cleaner-offset-checkpoint, leader-epoch-checkpoint) have one format: a line with the version, 0, a line with the number
of entries, then one entry per line. `partition.metadata` contains a partition's topic id; `meta.properties` contains
the ids of the cluster and of the broker; `.kafka_cleanshutdown` records a clean stop. Three files are Odradek's own:
`odradek-producer-ids` contains the end of the reserved producer ids, `odradek-replaced-replica` marks a partition's
directory that a move is about to replace by the one in another log directory, and `odradek-missing-logs` exists while
logs may be missing because a broker of a cluster began to use the directory when it had partitions already.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from odradek.log.storage.filesystem import FileSystem, remove_if_exists, write_atomically
from odradek.protocol.types import ZERO_UUID

RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS_FILE = "replication-offset-checkpoint"
LOG_START_OFFSETS_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSETS_FILE = "cleaner-offset-checkpoint"
LEADER_EPOCHS_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
PRODUCER_IDS_FILE = "odradek-producer-ids"
REPLACED_REPLICA_FILE = "odradek-replaced-replica"
MISSING_LOGS_FILE = "odradek-missing-logs"
LOCK_FILE = ".lock"

_VERSION = "0"
_NO_EPOCH = -1


class MalformedFileError(Exception):
    """A file of a log directory violates its format; the message contains its path."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


def _write_checkpoint(fs: FileSystem, path: str, lines: list[str], *, sync: bool) -> None:
    text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
    write_atomically(fs, path, text.encode(), sync=sync)


def _read_checkpoint(fs: FileSystem, path: str, fields: int) -> list[list[str]]:
    """Return the entries, each split into its fields. A missing or empty file has none."""
    try:
        text = fs.read_bytes(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise MalformedFileError(path, "not text") from None
    if not text:
        return []
    lines = text.split("\n")
    if lines[0].strip() != _VERSION:
        raise MalformedFileError(path, f"unknown version {lines[0]!r}, expected {_VERSION}")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or not lines[1].strip().isdigit():
        raise MalformedFileError(path, "the second line is not a number of entries")
    entries = [line.split() for line in lines[2:]]
    if len(entries) != int(lines[1]):
        raise MalformedFileError(path, f"{len(entries)} entries, but the second line is {lines[1].strip()}")
    for number, entry in enumerate(entries, 3):
        if len(entry) != fields:
            raise MalformedFileError(path, f"line {number} is malformed: {lines[number - 1]!r}")
    return entries


def _integer(path: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise MalformedFileError(path, f"not a number: {text!r}") from None


def read_offsets(fs: FileSystem, path: str) -> dict[tuple[str, int], int]:
    """Read a checkpoint of offsets by (topic, partition). Raises MalformedFileError."""
    return {
        (topic, _integer(path, partition)): _integer(path, offset)
        for topic, partition, offset in _read_checkpoint(fs, path, 3)
    }


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace a checkpoint of offsets durably. Blocks."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    _write_checkpoint(fs, path, lines, sync=True)


def read_leader_epochs(fs: FileSystem, path: str) -> list[tuple[int, int]]:
    """Read (epoch, start offset) of all leader epochs, ascending. Raises MalformedFileError."""
    entries = [(_integer(path, epoch), _integer(path, start)) for epoch, start in _read_checkpoint(fs, path, 2)]
    # This checkpoint is not always synced: after a power failure digits of its last offset may be missing.
    if entries and not fs.read_bytes(path).endswith(b"\n"):
        raise MalformedFileError(path, "the last line is incomplete")
    return sorted(entries)


def write_leader_epochs(fs: FileSystem, path: str, entries: Iterable[tuple[int, int]], *, sync: bool) -> None:
    _write_checkpoint(fs, path, [f"{epoch} {start}" for epoch, start in entries], sync=sync)


def encode_uuid(value: bytes) -> str:
    """Format a 16-byte id as Kafka does: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """Parse an id in Kafka's format. Raises ValueError."""
    value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(value) != 16:
        raise ValueError(f"not a 16-byte id: {text!r}")
    return value


def read_partition_metadata(fs: FileSystem, directory: str) -> bytes | None:
    """Read the topic id of a partition's directory; None if it has none. Raises MalformedFileError."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    try:
        text = fs.read_bytes(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise MalformedFileError(path, "not text") from None
    lines = dict(line.partition(":")[::2] for line in text.splitlines() if line)
    if lines.get("version", "").strip() != _VERSION:
        raise MalformedFileError(path, "unknown or missing version")
    try:
        topic_id = decode_uuid(lines["topic_id"].strip())
    except (KeyError, ValueError):
        raise MalformedFileError(path, "no valid topic_id") from None
    return None if topic_id == ZERO_UUID else topic_id


def write_partition_metadata(fs: FileSystem, directory: str, topic_id: bytes, *, sync: bool = True) -> None:
    text = f"version: {_VERSION}\ntopic_id: {encode_uuid(topic_id)}"
    write_atomically(fs, f"{directory}/{PARTITION_METADATA_FILE}", text.encode(), sync=sync)


class MetaProperties(NamedTuple):
    """Content of a log directory's meta.properties. Unknown keys are retained when it is rewritten."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: bytes | None
    others: dict[str, str]


def read_meta_properties(fs: FileSystem, log_directory: str) -> MetaProperties | None:
    """Read meta.properties; None if there is none. In version 0 `node.id` is `broker.id`. Raises MalformedFileError."""
    path = f"{log_directory}/{META_PROPERTIES_FILE}"
    try:
        values = parse_java_properties(fs.read_bytes(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise MalformedFileError(path, "not text") from None
    except ValueError as error:
        raise MalformedFileError(path, f"malformed \\u escape: {error}") from None
    if "version" not in values:
        raise MalformedFileError(path, "no version")
    version = _integer(path, values.pop("version"))
    if version not in (0, 1):
        raise MalformedFileError(path, f"unknown version {version}")
    node = values.pop("node.id" if version else "broker.id", None)
    directory_id = values.pop("directory.id", None)
    try:
        decoded = decode_uuid(directory_id) if directory_id is not None else None
    except ValueError as error:
        raise MalformedFileError(path, f"directory.id is {error}") from None
    cluster_id = values.pop("cluster.id", None)
    return MetaProperties(version, cluster_id, None if node is None else _integer(path, node), decoded, values)


def write_meta_properties(fs: FileSystem, log_directory: str, meta: MetaProperties) -> None:
    """Replace meta.properties durably. Blocks."""
    values = dict(meta.others)
    if meta.cluster_id is not None:
        values["cluster.id"] = meta.cluster_id
    values["version"] = str(meta.version)
    if meta.directory_id is not None:
        values["directory.id"] = encode_uuid(meta.directory_id)
    if meta.node_id is not None:
        values["node.id" if meta.version else "broker.id"] = str(meta.node_id)
    path = f"{log_directory}/{META_PROPERTIES_FILE}"
    write_atomically(fs, path, format_java_properties(values).encode())


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> dict[str, str]:
    """Parse Java's .properties format: comments, `=`, `:` or blank as separator, continued lines, backslash escapes.

    Raises ValueError for a \\u without four hexadecimal digits.
    """
    values: dict[str, str] = {}
    logical = ""
    # Not splitlines(), which has more line ends than Java.
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(" \t\f")
        if not logical and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            logical += line[:-1]
            continue
        key, value = _split_property(logical + line)
        values[key] = value
        logical = ""
    if logical:
        key, value = _split_property(logical)
        values[key] = value
    return values


def _split_property(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    rest = line[position:].lstrip(" \t\f")
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(line[:position]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    result, position = [], 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if len(digits) < 4:
                    raise ValueError(f"cut off: {digits!r}")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        result.append(character)
    return "".join(result)


def format_java_properties(values: Mapping[str, str]) -> str:
    """Format values in Java's .properties format."""
    letters = {character: letter for letter, character in _ESCAPES.items()}

    def escape(text: str, specials: str) -> str:
        return "".join(f"\\{letters.get(c, c)}" if c in specials or c in letters else c for c in text)

    lines = []
    for key, value in values.items():
        text = escape(value, "\\")
        # A blank at the beginning of a value would be read as a part of the separator.
        lines.append(f"{escape(key, chr(92) + '=: #!')}={chr(92) + text if text.startswith(' ') else text}")
    return "\n".join([*lines, ""])


def read_clean_shutdown(fs: FileSystem, log_directory: str) -> int | None:
    """Read the broker epoch of the last clean stop, -1 if it was not recorded; None if the last stop was not clean."""
    try:
        content = fs.read_bytes(f"{log_directory}/{CLEAN_SHUTDOWN_FILE}")
    except FileNotFoundError:
        return None
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return _NO_EPOCH
    return epoch if isinstance(epoch, int) else _NO_EPOCH


def write_clean_shutdown(fs: FileSystem, log_directory: str, broker_epoch: int = _NO_EPOCH) -> None:
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(fs, f"{log_directory}/{CLEAN_SHUTDOWN_FILE}", content.encode())


def remove_clean_shutdown(fs: FileSystem, log_directory: str) -> None:
    """Remove the file of a clean stop durably. Call it before a log is loaded: a later crash is not a clean stop."""
    if remove_if_exists(fs, f"{log_directory}/{CLEAN_SHUTDOWN_FILE}"):
        fs.sync_directory(log_directory)


def read_next_producer_id(fs: FileSystem, log_directory: str) -> int:
    """Return the id after the last that was reserved; 0 without a file. Raises MalformedFileError."""
    path = f"{log_directory}/{PRODUCER_IDS_FILE}"
    try:
        text = fs.read_bytes(path).decode()
    except FileNotFoundError:
        return 0
    except UnicodeDecodeError:
        raise MalformedFileError(path, "not text") from None
    lines = text.split()
    if len(lines) != 2 or lines[0] != _VERSION:
        raise MalformedFileError(path, "unknown version or no id")
    return _integer(path, lines[1])


def write_next_producer_id(fs: FileSystem, log_directory: str, next_id: int) -> None:
    """Replace the file durably. Blocks."""
    write_atomically(fs, f"{log_directory}/{PRODUCER_IDS_FILE}", f"{_VERSION}\n{next_id}\n".encode())


def mark_missing_logs(fs: FileSystem, log_directory: str) -> None:
    """Create the mark durably. Blocks."""
    write_atomically(fs, f"{log_directory}/{MISSING_LOGS_FILE}", b"")


def remove_missing_logs_mark(fs: FileSystem, log_directory: str) -> None:
    remove_if_exists(fs, f"{log_directory}/{MISSING_LOGS_FILE}")
