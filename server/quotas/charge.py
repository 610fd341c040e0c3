"""The use of quotas by one request, and the time for which its client is throttled (KIP-219).

The request's response is sent at once, with the throttle time; then the connection begins no request for that time. If
several quotas are exceeded, the longest throttle time applies.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

from odradek.server.quotas.meters import BucketMeter, RateMeter
from odradek.server.quotas.mutations import MutationQuota

if TYPE_CHECKING:
    from odradek.server.quotas.client_quotas import ClientLimits, ClientQuotas

T = TypeVar("T")
Y = TypeVar("Y")


class RequestCharge:
    """The use of quotas by one request of a client that has a quota.

    produced_bytes: the size of a Produce request, else 0
    is_exempt: the use is not recorded, because the request is one between brokers
    is_settled: the use is recorded, and `throttle_ms` is final

    The time of a request is that on the reactor thread, including its work in slices. As in Kafka it does not include
    the retries of a request that waits.
    """

    __slots__ = (
        "_began_s", "_busy_s", "_limits", "_mutation", "_quotas", "_recorded_s", "is_exempt", "is_settled",
        "produced_bytes", "throttle_ms",
    )  # fmt: skip

    def __init__(
        self, quotas: "ClientQuotas", limits: "ClientLimits", produced_bytes: int, *, is_exempt: bool = False
    ) -> None:
        self.produced_bytes = produced_bytes
        self.is_exempt = is_exempt
        self.is_settled = False
        self.throttle_ms = 0
        self._quotas = quotas
        self._limits = limits
        self._mutation: MutationQuota | None = None
        self._began_s = -1.0
        self._busy_s = 0.0
        self._recorded_s = 0.0

    # -- time of the request ---------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Begin to count time for this request."""
        self._quotas.running = self
        self._began_s = self._quotas.monotonic()

    def pause(self) -> None:
        """Count no time for this request until `resume`. Time that follows the response counts too."""
        self._quotas.running = None
        self._busy_s += self._quotas.monotonic() - self._began_s
        self._began_s = -1.0
        meter = self._limits.request
        if self.is_settled and meter is not None and not self.is_exempt:
            meter.add(self._take_percentage(), self._quotas.monotonic_ms())

    def measure(self, work: Generator[Y, None, T]) -> Generator[Y, None, T]:
        """Return the same work, the steps of which count for this request."""
        try:
            while True:
                is_within = self._began_s >= 0
                if not is_within:
                    self.resume()
                try:
                    waited_for = next(work)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    if not is_within:
                        self.pause()
                yield waited_for
        finally:
            work.close()

    def _take_percentage(self) -> float:
        """Return the time that is not recorded yet, in percent of a second."""
        running_s = 0.0 if self._began_s < 0 else self._quotas.monotonic() - self._began_s
        total_s = self._busy_s + running_s
        percentage = (total_s - self._recorded_s) * 100
        self._recorded_s = total_s
        return percentage

    # -- quotas ----------------------------------------------------------------------------------------------------

    def make_mutation_quota(self, *, is_strict: bool) -> MutationQuota | None:
        """Return the quota for the changes of topics by this request; None if the client has none."""
        meter: BucketMeter | None = self._limits.mutation
        if meter is None:
            return None
        self._mutation = MutationQuota(meter, self._quotas.monotonic_ms, is_strict=is_strict)
        return self._mutation

    def spend_mutations(self, partitions: int) -> None:
        """Record partitions that were created automatically. They delay only later requests."""
        if self._limits.mutation is not None:
            self._limits.mutation.spend(partitions, self._quotas.monotonic_ms())

    @property
    def max_fetch_bytes(self) -> float:
        """The largest fetch that is not throttled if nothing else was fetched."""
        meter = self._limits.fetch
        return float("inf") if meter is None else meter.burst

    def settle(self, *, has_failed: bool = False) -> int:
        """Record the use of the request; return the throttle time in ms. Only the first call has an effect.

        The bytes of a failed Produce request do not count.
        """
        if self.is_exempt:
            self._finish(0)
        if not self.is_settled:
            time_ms, bytes_ms = self._record_time(), 0
            if self.produced_bytes and not has_failed:
                bytes_ms = self._record(self._limits.produce, self.produced_bytes)
            changes_ms = 0 if self._mutation is None else self._mutation.find_throttle_ms()
            if changes_ms > time_ms:
                # Such a request produces no bytes.
                self._finish(changes_ms)
            else:
                self._finish_longest(time_ms, self._limits.produce, bytes_ms)
        return self.throttle_ms

    def settle_without_response(self) -> int:
        """Record a Produce request with acks=0, whose time does not count; return the throttle time in ms."""
        if not self.is_settled:
            produce = self._limits.produce
            self._finish_longest(0, produce, self._record(produce, self.produced_bytes))
        return self.throttle_ms

    def settle_fetch(self, size_bytes: int) -> int:
        """Record a fetch of this size; return the throttle time in ms.

        If it is positive the response has to be empty, so its bytes do not count.
        """
        time_ms = self._record_time()
        bytes_ms = self._record(self._limits.fetch, size_bytes)
        meter = self._limits.fetch
        self._finish_longest(time_ms, meter, bytes_ms)
        if self.throttle_ms > 0 and meter is not None:
            meter.add(-size_bytes, self._quotas.monotonic_ms())
        return self.throttle_ms

    def _record_time(self) -> int:
        """Record the time of the request. As in Kafka it delays the client for at most one sample."""
        window = self._quotas.window
        return min(self._record(self._limits.request, self._take_percentage()), window.sample_ms)

    def _record(self, meter: RateMeter | None, value: float) -> int:
        return 0 if meter is None else meter.record(value, self._quotas.monotonic_ms())

    def _finish_longest(self, time_ms: int, bytes_meter: RateMeter | None, bytes_ms: int) -> None:
        """Apply the longer throttle time of two. As in Kafka it is recorded for the quota that it is of."""
        meter, throttle_ms = (bytes_meter, bytes_ms) if bytes_ms > time_ms else (self._limits.request, time_ms)
        if throttle_ms > 0 and meter is not None:
            meter.record_throttling(throttle_ms, self._quotas.monotonic_ms())
        self._finish(throttle_ms)

    def _finish(self, throttle_ms: int) -> None:
        self.is_settled = True
        self.throttle_ms = throttle_ms
