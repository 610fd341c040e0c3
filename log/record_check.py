"""The rules for single records of a produced batch: keys on a compacted topic, and bounds of timestamps."""

from typing import Final

from odradek.log.config import LogConfig
from odradek.protocol.compression import Buffer
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.record_batch import LOG_APPEND_TIME_FLAG, NO_TIMESTAMP, BatchHeader, wrap_int64
from odradek.protocol.record_shape import check_record

MOST_RECORD_ERRORS: Final = 1000
"""So many are reported; the check of a batch ends with the last of them."""


class RejectedRecordsError(KafkaError):
    """Single records break a rule; `record_errors` has (index in the batch, what is wrong) for each (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class RecordCheck:
    """The check of each record of a batch, in order.

    max_timestamp: the largest so far; is_numbered: whether the offset deltas are 0, 1, 2... so far
    """

    __slots__ = (
        "_base_timestamp", "_client_set_type", "_code", "_create_time", "_earliest", "_errors", "_latest", "_needs_key",
        "index", "is_numbered", "max_timestamp",
    )  # fmt: skip

    def __init__(self, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
        self.index = 0
        self.max_timestamp = NO_TIMESTAMP
        self.is_numbered = True
        self._base_timestamp = header.base_timestamp
        self._client_set_type = bool(header.attributes & LOG_APPEND_TIME_FLAG)
        self._create_time = config.message_timestamp_type == "CreateTime"
        self._earliest = now_ms - config.message_timestamp_before_max_ms
        self._latest = now_ms + config.message_timestamp_after_max_ms
        self._needs_key = config.compacts and not header.is_control
        self._code = ErrorCode.INVALID_RECORD
        self._errors: list[tuple[int, str]] = []

    def check_all(self, records: Buffer, position: int, count: int) -> int:
        """Check the next `count` records, the first of which is at `position`; return where they end.

        Raises InvalidRecordError; IncompleteRecordError at the end of the data, with the records before it checked;
        RejectedRecordsError, TakesLongError.
        """
        for _ in range(count):
            timestamp_delta, offset_delta, has_key, position = check_record(records, position)
            self.check(timestamp_delta, offset_delta, has_key)
        return position

    def check(self, timestamp_delta: int, offset_delta: int, has_key: bool) -> None:
        """Check the next record. Raises RejectedRecordsError once there are too many errors."""
        timestamp = wrap_int64(self._base_timestamp + timestamp_delta)
        if offset_delta != self.index:
            self.is_numbered = False
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if self._needs_key and not has_key:
            self._errors.append((self.index, "a compacted topic takes no record without a key"))
        elif self._create_time and timestamp != NO_TIMESTAMP:
            if not self._earliest <= timestamp <= self._latest:
                self._code = ErrorCode.INVALID_TIMESTAMP
                bounds = f"{self._earliest} to {self._latest}"
                self._errors.append((self.index, f"timestamp {timestamp} is outside of {bounds}"))
        elif self._client_set_type:
            self._code = ErrorCode.INVALID_TIMESTAMP
            self._errors.append((self.index, "producers must not set the timestamp type LogAppendTime"))
        self.index += 1
        if len(self._errors) >= MOST_RECORD_ERRORS:
            self.raise_errors()

    def raise_errors(self) -> None:
        """Raise RejectedRecordsError if any record broke a rule."""
        errors = self._errors
        if errors:
            is_time = self._code == ErrorCode.INVALID_TIMESTAMP
            what = "an invalid timestamp" if is_time else f"{len(errors)} record errors"
            raise RejectedRecordsError(
                self._code, f"the batch was rejected because of {what}: {errors[0][1]}", errors
            )
