"""The interface of group and transaction shards for the runtime of the server, which writes their records."""

from collections.abc import Iterator
from typing import Protocol

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.result import CoordinatorResult
from odradek.coordinator.steps import Steps
from odradek.protocol.errors import ErrorCode


class Shard(Protocol):
    """A group or transaction shard."""

    @property
    def coordinator_state(self) -> CoordinatorState: ...

    def replay(self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = -1) -> None: ...

    def finish_loading(self, now_ms: int) -> Steps[CoordinatorResult]: ...

    def resign(self, now_ms: int) -> Iterator[CoordinatorResult]: ...

    def on_appended(
        self, result: CoordinatorResult, base_offset: int, now_ms: int, *, is_replicated: bool = False
    ) -> None: ...

    def on_written(self, result: CoordinatorResult, base_offset: int, now_ms: int) -> CoordinatorResult: ...

    def on_write_failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> CoordinatorResult: ...

    def on_write_timed_out(self, result: CoordinatorResult, now_ms: int) -> CoordinatorResult: ...

    def next_deadline_ms(self) -> int | None: ...

    def tick(self, now_ms: int) -> CoordinatorResult: ...
