"""Records that are checked and counted, but not sent: `odradek record produce --dry-run`."""

from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaError

from odradek.tools.records.input import BadLine, Input
from odradek.tools.records.producing import ReportError, describe_error

_UNKNOWN_PARTITION: Final = describe_error(KafkaError(KafkaError._UNKNOWN_PARTITION))


class RecordChecker:
    """Takes the place of a `RecordProducer`; reports lines that are no records, and partitions that do not exist.

    is_transaction: one record that fails prevents all others
    """

    def __init__(self, partition_count: int, report: ReportError, *, is_transaction: bool = False) -> None:
        self._partition_count = partition_count
        self._report = report
        self._is_transaction = is_transaction
        self._checked = 0
        self.failed = 0

    @property
    def produced(self) -> int:
        """Return the number of records that would be sent."""
        return 0 if self._is_transaction and self.failed else self._checked - self.failed

    def begin(self) -> None:
        """Do nothing: no transaction is begun."""

    def send_values(self, chunks: Iterable[list[bytes]], progress: Callable[[int], None]) -> None:
        """Count lines that are values without keys and headers."""
        for lines in chunks:
            self._checked += len(lines)
            progress(sum(map(len, lines)) + len(lines))

    def send(self, records: Iterable[Input]) -> None:
        """Count records."""
        for record in records:
            self._checked += 1
            if isinstance(record, BadLine):
                self._fail(record.source, record.reason)
            elif record.partition >= self._partition_count:
                self._fail(record.source, _UNKNOWN_PARTITION)

    def finish(self) -> None:
        """Do nothing: no record is on the way."""

    def abandon(self) -> None:
        """Do nothing: no record is on the way."""

    def _fail(self, source: str, reason: str) -> None:
        self.failed += 1
        self._report(f"{source}: {reason}")
