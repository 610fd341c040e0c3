"""Drives one transaction shard the way a server does: `Driver`, and markers besides."""

from collections.abc import Callable
from typing import Any

from odradek.coordinator.result import CoordinatorResult, TransactionOutcome
from odradek.coordinator.tests.driver import Driver
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard import TransactionShard
from odradek.protocol.errors import ErrorCode, KafkaError

FIRST_PRODUCER_ID = 1000


class TransactionDriver(Driver):
    """A transaction shard, its log, its clock, and the markers it wants written.

    Markers are written at once, or wait in `markers` while `is_holding_markers`. Each load is a new coordinator epoch.
    """

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.coordinator_epoch = 0
        self.next_producer_id = FIRST_PRODUCER_ID
        self.has_producer_ids = True
        self.is_holding_markers = False
        self.markers: list[tuple[TransactionOutcome, tuple[str, int]]] = []
        self.on_outcome: Callable[[TransactionOutcome], None] = lambda outcome: None
        self.settings: Any = settings or TransactionSettings()
        super().__init__(self.settings)

    def new_shard(self) -> Any:
        self.coordinator_epoch += 1
        return TransactionShard(
            self.settings,
            coordinator_epoch=self.coordinator_epoch,
            take_producer_id=self._take_producer_id,
            monotonic_ms=lambda: self.monotonic_ms,
        )

    def _take_producer_id(self) -> int:
        if not self.has_producer_ids:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def _send(self, result: CoordinatorResult) -> None:
        super()._send(result)
        for outcome in result.outcomes:
            self.on_outcome(outcome)
            for partition in outcome.partitions:
                if self.is_holding_markers:
                    self.markers.append((outcome, partition))
                else:
                    self.answer_marker(outcome, partition, ErrorCode.NONE)

    def answer_marker(self, outcome: TransactionOutcome, partition: tuple[str, int], error: ErrorCode) -> None:
        """Say how the marker in one partition has fared."""
        self.take(
            self.shard.marker_written(
                outcome.transactional_id, outcome.producer_id, outcome.producer_epoch, partition, error, self.now_ms
            )
        )

    def take_marker(self, topic: str, index: int) -> tuple[TransactionOutcome, tuple[str, int]]:
        """The oldest marker that waits for this partition."""
        found = next(item for item in self.markers if item[1] == (topic, index))
        self.markers.remove(found)
        return found
