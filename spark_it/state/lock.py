"""`pipeline.lock.toml` records what a checkpoint was started with. A change that the checkpoint does not allow is found
before Spark reads it.

A reset begins a new `generation`. The generation is part of the checkpoint's folder, of a batch's folder in a files
sink and of every marker: output of an earlier generation never counts for this one. Generations are minutes since 1970,
so they increase even if the state is lost.

Two copies of a pipeline may begin in the same minute, so a state has a random identity too (`state`). The first run
claims the sink's markers for it before it reads anything, and a batch is written only where the markers are its own. A
reset gives a state a new identity with its new generation. Without a reset an identity never replaces another.
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
from odradek.spark_it.definition.guarantees import TransactionKind, transaction_kind
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.sql import tokens
from odradek.spark_it.state.files import write_atomically

FILE = "pipeline.lock.toml"
VERSION = 2

ResetTo = Literal["earliest", "committed"]


class LockError(Exception):
    """A lock that cannot be read; `str()` names the file."""


class DamagedLockError(LockError):
    """A lock that is damaged or of an earlier version. A reset begins without it."""


@dataclass(frozen=True)
class Lock:
    """The conditions under which a checkpoint was started: hashes of parts of the file, start offsets by source, ids of
    topics.

    `start` holds as long as there is no checkpoint, even if the file has changed. With `is_pending` the group's offsets
    may differ from `start`: they must be committed before anything is read. With `takes_over` a reset began the state,
    which has yet to replace the markers of another state in the sink.
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


def new_generation(now_ms: int, last: int | None) -> int:
    """Return the generation of a state that begins at `now_ms`, after `last`."""
    return max(now_ms // 60_000, 0 if last is None else last + 1)


def new_state() -> str:
    """Return an identity for a state that begins."""
    return secrets.token_hex(8)


def lock_of(pipeline: Pipeline, stateful: str | None, generation: int, state: str = "") -> Lock:
    """Return the lock of a pipeline as its file is now. `stateful` is as for `guarantees.guarantee`."""
    of = transaction_kind(pipeline, stateful)
    hashes = {}
    for name, source in pipeline.sources.items():
        hashes[f"source.{name}"] = _hash(source.texts("place"))
        hashes[f"columns.{name}"] = _hash(source.texts("shape"))
    steps = [(s.name, tokens.normalised(s.sql) if s.sql else [s.python, *s.input]) for s in pipeline.transforms]
    hashes["transforms"] = _hash(steps)
    hashes["sink"] = _hash(pipeline.sink.texts("place"))
    return Lock(
        name=pipeline.name,
        generation=generation,
        is_stateful=stateful is not None,
        transaction_kind=None if of is None else of.name.lower(),
        tasks_max=pipeline.settings.tasks_max,
        hashes=hashes,
        state=state,
    )


def why_stateful(pipeline: Pipeline, lock: Lock | None) -> str | None:
    """Return the reason why the pipeline is stateful, as far as it is known without Spark.

    It follows from the statements, or from Spark's plan in an earlier run of the same statements.
    """
    said = guarantees.why_stateful(pipeline)
    if said is not None or lock is None or not lock.is_stateful:
        return said
    is_same = lock_of(pipeline, None, 0).hashes["transforms"] == lock.hashes.get("transforms")
    return "Spark's plan" if is_same else None


def _hash(what: object) -> str:
    text = json.dumps(what, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Change(NamedTuple):
    """A change that the checkpoint does not allow, and the resets that solve it, the best first."""

    what: str
    why: str
    resets: tuple[ResetTo, ...]

    def __str__(self) -> str:
        resets = " or ".join(f"reset --to {reset}" for reset in self.resets)
        return f"{self.what}: {self.why}; take it back, or {resets}"


def changes(pipeline: Pipeline, old: Lock, new: Lock) -> list[Change]:
    """Return the changes from `old` to `new` that the checkpoint does not allow; empty if `run` may continue
    with it.
    """
    resets = resets_of(pipeline, is_stateful=old.is_stateful or new.is_stateful)
    return [Change(what, why, resets) for what, why in _changes(old, new)]


def resets_of(pipeline: Pipeline, *, is_stateful: bool) -> tuple[ResetTo, ...]:
    """Return the possible resets of the pipeline, the best first.

    `committed` continues at the group's offsets: only topics have them, and state begins empty.
    """
    if not all(isinstance(source, TopicSource) for source in pipeline.sources.values()):
        return ("earliest",)
    return ("earliest", "committed") if is_stateful else ("committed", "earliest")


def _changes(old: Lock, new: Lock) -> Iterator[tuple[str, str]]:
    keeps_state = old.is_stateful or new.is_stateful
    if old.name != new.name:
        yield f"the name is {new.name}, and the checkpoint was begun by {old.name}", "what is written is marked with it"
    for key in sorted({*old.hashes, *new.hashes}):
        kind, _, name = key.partition(".")
        before, now = old.hashes.get(key), new.hashes.get(key)
        if before == now:
            continue
        if kind == "source":
            happened = "is new" if before is None else "is gone" if now is None else "reads from somewhere else"
            yield f"source {name} {happened}", "the checkpoint has offsets of what was there"
        elif kind == "columns" and keeps_state and before is not None and now is not None:
            yield f"source {name} has other columns", "Spark keeps state of them"
        elif kind == "transforms" and keeps_state:
            yield "the transforms are others", "Spark keeps state of them"
        elif kind == "sink":
            yield "the sink writes somewhere else", "what the checkpoint has as written is not there"
    if old.transaction_kind != new.transaction_kind:
        yield f"the sink is written in {_kind(new)}, not {_kind(old)}", "their markers do not know of each other"
    batches = TransactionKind.BATCHES.name.lower()
    if old.tasks_max != new.tasks_max and (keeps_state or batches in (old.transaction_kind, new.transaction_kind)):
        why = "a batch, and the state, is parted by it"
        yield f"tasks.max is {new.tasks_max}, and the checkpoint was begun with {old.tasks_max}", why


def _kind(lock: Lock) -> str:
    return "no transactions" if lock.transaction_kind is None else TransactionKind[lock.transaction_kind.upper()].value


def checkpoint_folder(state_folder: Path, lock: Lock) -> Path:
    """Return the folder of the checkpoint of the lock's generation."""
    return state_folder / "checkpoint" / str(lock.generation)


# The file


def write_lock(state_folder: Path, lock: Lock) -> None:
    """Replace the lock. Raises OSError."""
    lines = [
        "# What the checkpoint beside this file was begun with. Written by the pipeline; do not edit.",
        f"version = {VERSION}",
        f"name = {_string(lock.name)}",
        f"generation = {lock.generation}",
        f"state = {_string(lock.state)}",
        f"takes_over = {_boolean(lock.takes_over)}",
        f"stateful = {_boolean(lock.is_stateful)}",
        *([f"units = {_string(lock.transaction_kind)}"] if lock.transaction_kind is not None else []),
        f"tasks.max = {lock.tasks_max}",
        f"pending = {_boolean(lock.is_pending)}",
        "",
        "[hash]",
        *(f"{_string(key)} = {_string(value)}" for key, value in sorted(lock.hashes.items())),
        "",
        "[start]",
    ]
    for source, offsets in sorted(lock.start.items()):
        entries = ", ".join(
            _string(f"{topic}:{partition}:{offset}") for (topic, partition), offset in sorted(offsets.items())
        )
        lines.append(f"{_string(source)} = [{entries}]")
    lines += ["", "[topics]", *(f"{_string(topic)} = {_string(id_)}" for topic, id_ in sorted(lock.topics.items()))]
    write_atomically(state_folder / FILE, "\n".join(lines) + "\n")


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_lock(state_folder: Path) -> Lock | None:
    """Read the lock; None if there is none. Raises LockError, OSError."""
    path = state_folder / FILE
    try:
        read = tomllib.loads(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DamagedLockError(f"{path} cannot be read: {error}; {_WITHOUT_IT}") from None
    if (version := read.get("version")) != VERSION:
        is_earlier = isinstance(version, int) and version < VERSION
        kind, helps = (DamagedLockError, "; begin anew with reset") if is_earlier else (LockError, "")
        raise kind(f"{path} is of version {version}; this is version {VERSION}{helps}")
    try:
        return _lock(read)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedLockError(f"{path} is damaged; {_WITHOUT_IT}") from None


_WITHOUT_IT = "put it back from a copy, or begin anew with reset"


def _lock(read: Mapping[str, Any]) -> Lock:
    units = read.get("units")
    return Lock(
        name=str(read["name"]),
        generation=int(read["generation"]),
        is_stateful=bool(read["stateful"]),
        transaction_kind=None if units is None else TransactionKind[units.upper()].name.lower(),
        tasks_max=int(read["tasks"]["max"]),
        hashes=dict(read["hash"]),
        start={source: dict(map(_offset, entries)) for source, entries in read["start"].items()},
        is_pending=bool(read["pending"]),
        topics=dict(read.get("topics", {})),
        state=str(read["state"]),
        takes_over=bool(read["takes_over"]),
    )


def _offset(entry: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = entry.rsplit(":", 2)
    return (topic, int(partition)), int(offset)
