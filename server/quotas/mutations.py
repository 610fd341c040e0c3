"""The quota of changes to topics by one request, in partitions created or deleted (KIP-599)."""

from collections.abc import Callable

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.server.quotas.meters import BucketMeter


class MutationQuota:
    """The quota for one request. `record` is called for each topic, before the topic is changed.

    is_strict: changes are refused while the quota is exhausted, else the client is throttled after them
    """

    def __init__(self, meter: BucketMeter, monotonic_ms: Callable[[], int], *, is_strict: bool) -> None:
        self._meter = meter
        self._monotonic_ms = monotonic_ms
        self._is_strict = is_strict
        self._throttle_ms = 0
        self._throttled_at_ms = 0

    def record(self, partitions: int) -> None:
        """Spend credits for a number of partitions. Raises KafkaError THROTTLING_QUOTA_EXCEEDED if it is strict.

        A strict quota accepts any number of partitions unless it was exhausted before.
        """
        time_ms = self._monotonic_ms()
        throttle_ms = self._meter.find_throttle_ms(time_ms) if self._is_strict else 0
        if throttle_ms == 0:
            self._meter.spend(partitions, time_ms)
            if self._is_strict:
                return
            throttle_ms = self._meter.find_throttle_ms(time_ms)
            if throttle_ms == 0:
                return
        self._throttle_ms, self._throttled_at_ms = throttle_ms, time_ms
        if self._is_strict:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    def find_throttle_ms(self) -> int:
        """Return the time in ms for which the client is to be throttled from now on."""
        elapsed_ms = self._monotonic_ms() - self._throttled_at_ms
        return max(0, self._throttle_ms - elapsed_ms)
