"""Expiry of producers that wrote nothing for producer.id.expiration.ms, a bounded number of them at a time."""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from odradek.log.background.tasks import drain
from odradek.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_PRODUCERS_PER_STEP: Final = 5000
"""This many take about 2 ms of the reactor."""

_LOGS_PER_STEP: Final = 200


class ProducerExpiryTask:
    """A step of background work that visits all producers of all logs."""

    __slots__ = ("_end", "_log", "_logs", "_monotonic_ms", "_remaining")

    def __init__(self, logs: Callable[[], list[PartitionLog]], monotonic_ms: Callable[[], int]) -> None:
        self._logs = logs
        self._monotonic_ms = monotonic_ms
        self._remaining: Iterator[PartitionLog] | None = None
        self._log: PartitionLog | None = None
        self._end = 0

    def __call__(self, now_ms: int) -> bool:
        if self._remaining is None:
            self._remaining = drain(self._logs())
        budget = _PRODUCERS_PER_STEP
        for _ in range(_LOGS_PER_STEP):
            if self._log is None and not self._begin_next():
                return False
            assert self._log is not None
            state = self._log.producer_state
            end = min(self._end, len(state.producers))
            # If the next call raises, this log is skipped until the next run, and the other logs are visited.
            self._end = 0
            try:
                self._end = state.remove_expired(now_ms, end, budget)
            except Exception:
                logger.exception("cannot expire producers; please report it log=%s", self._log)
            budget -= end - self._end
            if self._end == 0:
                self._log = None
            if budget <= 0:
                return True
        return True

    def _begin_next(self) -> bool:
        assert self._remaining is not None
        self._log = next(self._remaining, None)
        if self._log is None:
            self._remaining = None
            return False
        self._log.producer_state.remove_expired_verifications(self._monotonic_ms())
        self._end = len(self._log.producer_state.producers)
        return True
