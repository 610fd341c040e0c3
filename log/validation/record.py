"""Checks of each record of a produced batch: a key on a compacted topic, and timestamps within their bounds."""

from typing import Final

from odradek.log.config import LogConfig
from odradek.properties import INT64_MAX
from odradek.protocol.batches.compression import Buffer
from odradek.protocol.batches.record_batch import LOG_APPEND_TIME_FLAG, NO_TIMESTAMP, BatchHeader, wrap_int64
from odradek.protocol.batches.record_runs import MIN_RUN, SINGLE_RECORDS, Run, records_to_block_end
from odradek.protocol.batches.record_shape import open_record
from odradek.protocol.errors import ErrorCode, KafkaError

MAX_RECORD_ERRORS: Final = 1000
"""Limit of reported errors; the check of a batch ends when it is reached."""


class RejectedRecordsError(KafkaError):
    """Records break a rule (KIP-467); `record_errors` contains (index in the batch, error message) for each.

    missing_keys: records without the key that a compacted topic needs
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]], missing_keys: int = 0
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
        self.missing_keys = missing_keys


class RecordCheck:
    """Check of the records of a batch, in order.

    `max_timestamp`: the largest so far
    `is_numbered`: the offset deltas so far are 0, 1, 2...
    """

    __slots__ = (
        "_base_timestamp", "_client_set_type", "_code", "_create_time", "_earliest", "_errors", "_latest",
        "_missing_keys", "_needs_key", "index", "is_numbered", "max_timestamp",
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
        self._missing_keys = 0
        self._code = ErrorCode.INVALID_RECORD
        self._errors: list[tuple[int, str]] = []

    def check_all(self, records: Buffer, position: int, count: int, max_headers: int) -> int:
        """Check the next `count` records, which start at `position`; return the position after them.

        Raises InvalidRecordError and RejectedRecordsError; and, after the check of all earlier records,
        IncompleteRecordError at the end of the data, and StepLimitError at the record that exceeds `max_headers`.
        """
        end = self.index + count
        # Runs use strided slices, which are slow on a memoryview.
        data = records if isinstance(records, bytes) else None
        run_at = self.index
        while self.index < end:
            if data is not None and run_at <= self.index <= end - MIN_RUN:
                run = Run(data, position, min(end - self.index, records_to_block_end(self.index)))
                if run.count and self._accepts(run):
                    position = run.end
                    run_at = self.index
                    continue
                run_at = self.index + SINGLE_RECORDS
            timestamp_delta, offset_delta, has_key, position, headers = open_record(records, position, max_headers)
            max_headers -= headers
            self.check(timestamp_delta, offset_delta, has_key)
        return position

    def _accepts(self, run: Run) -> bool:
        """Accept a run of records if none of them breaks a rule."""
        if self._client_set_type or (self._needs_key and not run.has_key):
            return False
        deltas = run.timestamp_deltas()
        least, largest = self._base_timestamp + min(deltas), self._base_timestamp + max(deltas)
        if not NO_TIMESTAMP < least <= largest <= INT64_MAX:
            return False
        if self._create_time and not self._earliest <= least <= largest <= self._latest:
            return False
        self.is_numbered = self.is_numbered and run.is_numbered(self.index)
        self.max_timestamp = max(self.max_timestamp, largest)
        self.index += run.count
        return True

    def check(self, timestamp_delta: int, offset_delta: int, has_key: bool) -> None:
        """Check the next record. Raises RejectedRecordsError if MAX_RECORD_ERRORS is reached."""
        timestamp = wrap_int64(self._base_timestamp + timestamp_delta)
        if offset_delta != self.index:
            self.is_numbered = False
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if self._needs_key and not has_key:
            self._missing_keys += 1
            self._errors.append((self.index, "a compacted topic accepts no record without a key"))
        elif self._create_time and timestamp != NO_TIMESTAMP:
            if not self._earliest <= timestamp <= self._latest:
                self._code = ErrorCode.INVALID_TIMESTAMP
                bounds = f"{self._earliest} to {self._latest}"
                self._errors.append((self.index, f"timestamp {timestamp} is outside the bounds {bounds}"))
        elif self._client_set_type:
            self._code = ErrorCode.INVALID_TIMESTAMP
            self._errors.append((self.index, "producers must not set the timestamp type LogAppendTime"))
        self.index += 1
        if len(self._errors) >= MAX_RECORD_ERRORS:
            self.raise_errors()

    def raise_errors(self) -> None:
        """Raise RejectedRecordsError if any record broke a rule."""
        errors = self._errors
        if errors:
            is_time = self._code == ErrorCode.INVALID_TIMESTAMP
            reason = "an invalid timestamp" if is_time else f"{len(errors)} record errors"
            raise RejectedRecordsError(
                self._code,
                f"the batch was rejected because of {reason}: {errors[0][1]}",
                errors,
                missing_keys=self._missing_keys,
            )
