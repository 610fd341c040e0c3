"""Drives one transaction shard as the server does, with the markers that it requests."""

from collections.abc import Callable

from odradek.coordinator.result import CoordinatorResult, TransactionOutcome
from odradek.coordinator.tests.driver import ShardDriver
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard import TransactionShard
from odradek.protocol.errors import ErrorCode, KafkaError

FIRST_PRODUCER_ID = 1000


class TransactionDriver(ShardDriver[TransactionShard]):
    """A transaction shard, its log, its clocks, and the markers that it requests.

    Markers are written at once, or wait in `markers` while `is_holding_markers`. Each load is a new coordinator epoch.
    """

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.coordinator_epoch = 0
        self.next_producer_id = FIRST_PRODUCER_ID
        self.has_producer_ids = True
        self.is_holding_markers = False
        self.markers: list[tuple[TransactionOutcome, tuple[str, int]]] = []
        self.on_outcome: Callable[[TransactionOutcome], None] = lambda outcome: None
        self.settings: TransactionSettings = settings or TransactionSettings()
        super().__init__()

    def new_shard(self) -> TransactionShard:
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
        """Pass the result of the marker's write in one partition to the shard."""
        self.take(
            self.shard.marker_written(
                outcome.transactional_id, outcome.producer_id, outcome.producer_epoch, partition, error, self.now_ms
            )
        )

    def take_marker(self, topic: str, index: int) -> tuple[TransactionOutcome, tuple[str, int]]:
        """Remove and return the oldest marker that waits for a partition."""
        found = next(item for item in self.markers if item[1] == (topic, index))
        self.markers.remove(found)
        return found
