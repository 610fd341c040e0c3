"""`pipeline.lock.toml`: the definition with which a checkpoint was started. A change that is incompatible with the
checkpoint is detected before Spark reads it.

A reset starts a new `generation`. The generation is part of the checkpoint's folder, of a batch's folder in a files
sink, and of every marker. Therefore output of an earlier generation never counts as output of this one. Generations are
minutes since 1970, so they increase even if the state is lost.

Two copies of a pipeline may start in the same minute, so a state also has a random identity (`state`). The first run
claims the sink's markers for this identity before it reads anything, and a batch is written only if its state owns the
markers. A reset assigns a new identity with the new generation. Without a reset an identity never replaces another.
"""

import hashlib
import json
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from odradek.spark_it.definition import guarantees
from odradek.spark_it.definition.guarantees import TransactionKind, find_transaction_kind
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.sql import tokens
from odradek.spark_it.state.files import write_atomically

FILE = "pipeline.lock.toml"
VERSION = 2

ResetTo = Literal["earliest", "committed"]


class LockError(Exception):
    """The lock cannot be read; `str()` names the file."""


class DamagedLockError(LockError):
    """The lock is damaged or has an earlier version. A reset does not need it."""


@dataclass(frozen=True)
class Lock:
    """The definition with which a checkpoint was started: hashes of parts of the file, start offsets by source, ids of
    topics.

    `start` applies while there is no checkpoint, even if the file has changed. With `is_pending` the group's offsets
    may differ from `start`: they must be committed before anything is read. With `takes_over` the state comes from a
    reset, and has not yet replaced the markers of another state in the sink.
    """

    name: str
    generation: int
    is_stateful: bool
    transaction_kind: str | None
    tasks_max: int
    hashes: Mapping[str, str]
    start: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    is_pending: bool = False
    topics: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    takes_over: bool = False


def make_generation(now_ms: int, last: int | None) -> int:
    """Return the generation of a state that is created at `now_ms`, greater than `last`."""
    return max(now_ms // 60_000, 0 if last is None else last + 1)


def make_state() -> str:
    """Return a random identity for a new state."""
    return secrets.token_hex(8)


def make_lock(pipeline: Pipeline, stateful: str | None, generation: int, state: str = "") -> Lock:
    """Return the lock for the current file. `stateful` is as for `guarantees.determine_guarantee`."""
    transactions = find_transaction_kind(pipeline, stateful)
    hashes = {}
    for name, source in pipeline.sources.items():
        hashes[f"source.{name}"] = _compute_hash(source.get_texts("identity_keys"))
        hashes[f"columns.{name}"] = _compute_hash(source.get_texts("column_keys"))
    steps = [(s.name, tokens.normalize(s.sql) if s.sql else [s.python, *s.input]) for s in pipeline.transforms]
    hashes["transforms"] = _compute_hash(steps)
    hashes["sink"] = _compute_hash(pipeline.sink.get_texts("identity_keys"))
    return Lock(
        name=pipeline.name,
        generation=generation,
        is_stateful=stateful is not None,
        transaction_kind=None if transactions is None else transactions.name.lower(),
        tasks_max=pipeline.settings.tasks_max,
        hashes=hashes,
        state=state,
    )


def find_stateful_reason(pipeline: Pipeline, lock: Lock | None) -> str | None:
    """Return the reason why the pipeline is stateful, found without Spark; None if it is stateless.

    The reason is in the statements, or in Spark's plan of an earlier run with the same statements.
    """
    reason = guarantees.find_stateful_reason(pipeline)
    if reason is not None or lock is None or not lock.is_stateful:
        return reason
    is_same = make_lock(pipeline, None, 0).hashes["transforms"] == lock.hashes.get("transforms")
    return "Spark's plan" if is_same else None


def _compute_hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class IncompatibleChange(NamedTuple):
    """A change that is incompatible with the checkpoint, and the resets that permit it, the best first."""

    what: str
    why: str
    resets: tuple[ResetTo, ...]

    def __str__(self) -> str:
        resets = " or ".join(f"reset --to {reset}" for reset in self.resets)
        return f"{self.what}: {self.why}; revert the change, or {resets}"


def find_changes(pipeline: Pipeline, old: Lock, new: Lock) -> list[IncompatibleChange]:
    """Return the changes from `old` to `new` that are incompatible with the checkpoint; without such changes `run` may
    continue.
    """
    resets = list_resets(pipeline, is_stateful=old.is_stateful or new.is_stateful)
    return [IncompatibleChange(what, why, resets) for what, why in _find_changes(old, new)]


def list_resets(pipeline: Pipeline, *, is_stateful: bool) -> tuple[ResetTo, ...]:
    """Return the possible resets of the pipeline, the best first.

    `committed` continues at the group's offsets: only topic sources have them, and Spark's state is empty afterwards.
    """
    if not all(isinstance(source, TopicSource) for source in pipeline.sources.values()):
        return ("earliest",)
    return ("earliest", "committed") if is_stateful else ("committed", "earliest")


def _find_changes(old: Lock, new: Lock) -> Iterator[tuple[str, str]]:
    keeps_state = old.is_stateful or new.is_stateful
    if old.name != new.name:
        yield f"name changed from {old.name} to {new.name}", "the markers in the sink contain the name"
    for key in sorted({*old.hashes, *new.hashes}):
        kind, _, name = key.partition(".")
        before, now = old.hashes.get(key), new.hashes.get(key)
        if before == now:
            continue
        if kind == "source":
            event = "was added" if before is None else "was removed" if now is None else "reads from another place"
            yield f"source {name} {event}", "the checkpoint has the offsets of the earlier sources"
        elif kind == "columns" and keeps_state and before is not None and now is not None:
            yield f"the columns of source {name} changed", "Spark's state depends on them"
        elif kind == "transforms" and keeps_state:
            yield "the transforms changed", "Spark's state depends on them"
        elif kind == "sink":
            yield "the sink writes to another place", "the batches that the checkpoint records are missing there"
    if old.transaction_kind != new.transaction_kind:
        yield (
            f"the sink would use {_describe_kind(new)} instead of {_describe_kind(old)}",
            "the two kinds of markers are incompatible",
        )
    batches = TransactionKind.BATCHES.name.lower()
    if old.tasks_max != new.tasks_max and (keeps_state or batches in (old.transaction_kind, new.transaction_kind)):
        why = "it determines the parts of a batch and the partitions of Spark's state"
        yield f"tasks.max changed from {old.tasks_max} to {new.tasks_max}", why


def _describe_kind(lock: Lock) -> str:
    return "no transactions" if lock.transaction_kind is None else TransactionKind[lock.transaction_kind.upper()].value


def get_checkpoint_folder(state_folder: Path, lock: Lock) -> Path:
    """Return the folder of the checkpoint of the lock's generation."""
    return state_folder / "checkpoint" / str(lock.generation)


# The file


def write_lock(state_folder: Path, lock: Lock) -> None:
    """Replace the lock. Raises OSError."""
    lines = [
        "# The definition with which the checkpoint in this folder was started. Written by the pipeline; do not edit.",
        f"version = {VERSION}",
        f"name = {_format_string(lock.name)}",
        f"generation = {lock.generation}",
        f"state = {_format_string(lock.state)}",
        f"takes_over = {_format_boolean(lock.takes_over)}",
        f"stateful = {_format_boolean(lock.is_stateful)}",
        *([f"units = {_format_string(lock.transaction_kind)}"] if lock.transaction_kind is not None else []),
        f"tasks.max = {lock.tasks_max}",
        f"pending = {_format_boolean(lock.is_pending)}",
        "",
        "[hash]",
        *(f"{_format_string(key)} = {_format_string(value)}" for key, value in sorted(lock.hashes.items())),
        "",
        "[start]",
    ]
    for source, offsets in sorted(lock.start.items()):
        entries = ", ".join(
            _format_string(f"{topic}:{partition}:{offset}") for (topic, partition), offset in sorted(offsets.items())
        )
        lines.append(f"{_format_string(source)} = [{entries}]")
    lines += [
        "",
        "[topics]",
        *(f"{_format_string(topic)} = {_format_string(id_)}" for topic, id_ in sorted(lock.topics.items())),
    ]
    write_atomically(state_folder / FILE, "\n".join(lines) + "\n")


def _format_boolean(value: bool) -> str:
    return "true" if value else "false"


def _format_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_lock(state_folder: Path) -> Lock | None:
    """Read the lock; None if there is none. Raises LockError, OSError."""
    path = state_folder / FILE
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DamagedLockError(f"{path} cannot be parsed: {error}; {_REMEDY}") from None
    if (version := content.get("version")) != VERSION:
        is_earlier = isinstance(version, int) and version < VERSION
        kind, remedy = (DamagedLockError, "; start over with reset") if is_earlier else (LockError, "")
        raise kind(f"{path} has version {version}; this release supports version {VERSION}{remedy}")
    try:
        return _parse_lock(content)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedLockError(f"{path} is damaged; {_REMEDY}") from None


_REMEDY = "restore it from a backup, or start over with reset"


def _parse_lock(content: Mapping[str, Any]) -> Lock:
    units = content.get("units")
    return Lock(
        name=str(content["name"]),
        generation=int(content["generation"]),
        is_stateful=bool(content["stateful"]),
        transaction_kind=None if units is None else TransactionKind[units.upper()].name.lower(),
        tasks_max=int(content["tasks"]["max"]),
        hashes=dict(content["hash"]),
        start={source: dict(map(_parse_offset, entries)) for source, entries in content["start"].items()},
        is_pending=bool(content["pending"]),
        topics=dict(content.get("topics", {})),
        state=str(content["state"]),
        takes_over=bool(content["takes_over"]),
    )


def _parse_offset(entry: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = entry.rsplit(":", 2)
    return (topic, int(partition)), int(offset)
