"""Drives one shard as the server does, with clocks that a test advances and a log in a list."""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorRecord, CoordinatorResult
from odradek.coordinator.shard_interface import Shard
from odradek.coordinator.steps import Steps
from odradek.protocol.errors import ErrorCode

T = TypeVar("T")
S = TypeVar("S", bound=Shard)

START_MS = 1_000_000


class Marker(NamedTuple):
    """A transaction marker in the log."""

    producer_id: int
    is_commit: bool


class Held(NamedTuple):
    """A result, or a marker if that is None, whose records are in the log from `base_offset` on, but not replicated.

    A result without records waits for those before it.
    """

    base_offset: int
    result: CoordinatorResult | None
    is_timed_out: bool = False


class ShardDriver(Generic[S]):
    """A shard, its log and its clocks.

    `now_ms` is the wall clock, which a test may set; `wait` advances both clocks. A second response to a token fails an
    assertion. With `is_holding`, writes stay in `held` until `release` is called, as they do while replicas lag: in the
    log, but not replicated. If `refused` is set, the next append fails with it.
    """

    settings: object

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.monotonic_ms = 0
        self.log: list[CoordinatorRecord | Marker] = []
        self.producers: dict[int, int] = {}
        """Offset in the log -> producer id of the transaction in which it was written."""
        self.answered: dict[Any, Any] = {}
        self.asked: set[Any] = set()
        self.is_holding = False
        self.held: deque[Held] = deque()
        self.refused: ErrorCode | None = None
        self.refusals = 0
        self.on_reply: Callable[[Any, Any], None] = lambda token, response: None
        self.on_record: Callable[[CoordinatorRecord], None] = lambda record: None
        self.shard = self.new_shard()

    def new_shard(self) -> S:
        raise NotImplementedError

    @property
    def parked(self) -> set[Any]:
        return self.asked - self.answered.keys()

    @property
    def high_watermark(self) -> int:
        """The first offset of the log that is not replicated."""
        return self.held[0].base_offset if self.held else len(self.log)

    def load(self) -> None:
        """Replay the log into a fresh shard and start serving."""
        self.shard = self.new_shard()
        self.replay_into(self.shard)
        self.take(run_at_once(self.shard.finish_loading(self.now_ms)))

    def replay_into(self, shard: S, end_offset: int | None = None, *, start_offset: int = 0) -> None:
        for offset, entry in enumerate(self.log[start_offset:end_offset], start_offset):
            if isinstance(entry, Marker):
                self._replay_marker(shard, entry)
            else:
                shard.replay(entry.key, entry.value, offset, self.producers.get(offset, -1))

    def _replay_marker(self, shard: S, marker: Marker) -> None:
        raise NotImplementedError

    def _on_marker_replicated(self, offset: int) -> None:
        raise NotImplementedError

    def call(self, name: str, token: Any, request: Any, version: int, client: str = "c", **more: Any) -> None:
        """Send one request."""
        assert token not in self.asked, f"token {token} used twice"
        self.asked.add(token)
        context = RequestContext(api_version=version, client_id=client, client_host="/10.0.0.1")
        self.take(getattr(self.shard, name)(request, context, token, self.now_ms, **more))

    def take(self, result: CoordinatorResult) -> None:
        """Append the records of a result, or send its responses."""
        if not result.records and result.after_offset >= self.high_watermark:
            self.held.append(Held(len(self.log), result))
        elif not result.records:
            self._send(result)
        elif self.refused is not None:
            error, self.refused = self.refused, None
            self.refusals += 1
            self.take(self.shard.on_write_failed(result, error, self.now_ms))
        else:
            base_offset = len(self.log)
            self._append(result)
            is_replicated = not self.is_holding and not self.held
            self.shard.on_appended(result, base_offset, self.now_ms, is_replicated=is_replicated)
            self._hold(Held(base_offset, result))

    def _append(self, result: CoordinatorResult) -> None:
        for record in result.records:
            if result.producer is not None:
                self.producers[len(self.log)] = result.producer.producer_id
            self.log.append(record)
            self.on_record(record)

    def _hold(self, written: Held) -> None:
        self.held.append(written)
        if not self.is_holding and len(self.held) == 1:
            self.release()

    def release(self) -> None:
        """Replicate the oldest held write."""
        base_offset, result, _ = self.held.popleft()
        if result is None:
            self._on_marker_replicated(base_offset)
        else:
            self.take(self.shard.on_written(result, base_offset, self.now_ms))
        if self.held and self.held[0].result is not None and not self.held[0].result.records:
            self.release()

    def time_out(self, *, keeps_completions: bool) -> None:
        """Time out the oldest held write that has not timed out yet."""
        for index, held in enumerate(self.held):
            if held.result is not None and not held.is_timed_out:
                left = held.result.without_replies(keeps_completions=keeps_completions)
                self.held[index] = Held(held.base_offset, left, is_timed_out=True)
                self.take(self.shard.on_write_timed_out(held.result, self.now_ms))
                return

    def _send(self, result: CoordinatorResult) -> None:
        for token, response in result.replies:
            assert token in self.asked, f"answer to unknown token {token}"
            assert token not in self.answered, f"token {token} answered twice"
            self.answered[token] = response
            self.on_reply(token, response)

    def wait(self, duration_ms: int) -> None:
        """Advance the clocks, and run `tick` at every deadline."""
        end_ms = self.monotonic_ms + duration_ms
        turns = 0
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self._pass(max(0, deadline_ms - self.monotonic_ms))
            self.take(self.shard.tick(self.now_ms))
            turns += 1
            assert turns < 100_000, "deadlines do not end"
        self._pass(end_ms - self.monotonic_ms)

    def _pass(self, duration_ms: int) -> None:
        self.monotonic_ms += duration_ms
        self.now_ms += duration_ms

    def resign(self) -> None:
        """Resign, because another broker is the leader now; the log is unchanged."""
        for rejected in self.shard.resign(self.now_ms):
            self.take(rejected)
        while self.held:
            result = self.held.popleft().result
            if result is not None:
                self._send(self.shard.on_write_failed(result, ErrorCode.NOT_LEADER_OR_FOLLOWER, self.now_ms))

    def truncate(self, end_offset: int) -> None:
        """Remove the log's end, as when another replica becomes leader."""
        del self.log[end_offset:]
        self.producers = {offset: producer for offset, producer in self.producers.items() if offset < end_offset}


class GroupDriver(ShardDriver[GroupShard]):
    """A group shard, to whose partition transaction markers are written as well."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings: GroupSettings = settings or GroupSettings()
        self._ids = 0
        super().__init__()

    def new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self._next_id, lambda: self.monotonic_ms)

    def _next_id(self) -> str:
        self._ids += 1
        return str(self._ids)

    def mark(self, producer_id: int, is_commit: bool) -> None:
        """Write a marker to the shard's partition."""
        offset = len(self.log)
        self.log.append(Marker(producer_id, is_commit))
        self.shard.on_marker_appended(producer_id, is_commit, offset)
        self._hold(Held(offset, None))

    def _replay_marker(self, shard: GroupShard, marker: Marker) -> None:
        shard.replay_end_of_transaction(*marker)

    def _on_marker_replicated(self, offset: int) -> None:
        self.shard.on_replicated(offset + 1)


def run_at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause. Return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def subscription(topics: list[str], user_data: bytes = b"") -> bytes:
    """A consumer's subscription, version 1."""
    parts = [b"\x00\x01", len(topics).to_bytes(4, "big")]
    for topic in topics:
        parts += [len(topic).to_bytes(2, "big"), topic.encode()]
    parts += [len(user_data).to_bytes(4, "big"), user_data, (0).to_bytes(4, "big")]
    return b"".join(parts)
