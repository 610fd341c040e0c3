"""The use of one kind of quota by each entity that has a limit and was active lately."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from odradek.server.quotas.limits import Limits, Owner
from odradek.server.quotas.rates import SampledRate, TokenBucket, Window, find_throttle_ms, round_ms

IDLE_MS: Final = 3_600_000
"""Time without use after which a meter is removed, as in Kafka."""

_EXAMINED_AT_CREATION: Final = 2
"""Meters that are examined when one is created: their number stays near that of the entities in use."""

_EXAMINED_AT_ONCE: Final = 500

MAX_METERS: Final = 100_000
"""Meters of one kind. Clients choose their ids: above it, the one that was examined longest ago is removed."""

_MAX_NAME_LENGTH: Final = 255
"""Length of a client id up to which it is held; of a longer one only the hash is."""


class Throttling:
    """The throttle times of one entity in the last samples; it exists from the first on."""

    __slots__ = ("_count", "_total_ms", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._count = SampledRate()
        self._total_ms = SampledRate()

    def record(self, throttle_ms: int, time_ms: int) -> None:
        """Add a throttle time."""
        self._count.record(self._window, 1, time_ms)
        self._total_ms.record(self._window, throttle_ms, time_ms)

    def measure(self, time_ms: int) -> float:
        """Return the mean of the throttle times; 0 without any."""
        count, _ = self._count.measure(self._window, time_ms)
        return self._total_ms.measure(self._window, time_ms)[0] / count if count else 0.0


class RateMeter:
    """The rate of one entity, and its limit.

    used_ms: the time of the last use
    throttling: None before the entity is throttled
    """

    __slots__ = ("_rate", "bound", "throttling", "used_ms", "window")

    def __init__(self, window: Window, time_ms: int) -> None:
        self.throttling: Throttling | None = None
        self.window = window
        self.bound = 0.0
        self.used_ms = time_ms
        self._rate = SampledRate()

    def record(self, value: float, time_ms: int) -> int:
        """Add a value; return the time in ms for which the client is to be throttled."""
        self.add(value, time_ms)
        rate, window_ms = self._rate.measure(self.window, time_ms)
        return find_throttle_ms(rate, self.bound, window_ms)

    def record_throttling(self, throttle_ms: int, time_ms: int) -> None:
        """Record that the client is throttled because of this quota."""
        if self.throttling is None:
            self.throttling = Throttling(self.window)
        self.throttling.record(throttle_ms, time_ms)

    def measure(self, time_ms: int) -> float:
        """Return the rate per second."""
        return self._rate.measure(self.window, time_ms)[0]

    def add(self, value: float, time_ms: int) -> None:
        """Add a value, which may be negative, without throttling."""
        self.used_ms = time_ms
        self._rate.record(self.window, value, time_ms)

    @property
    def burst(self) -> float:
        """The largest value that is not throttled if nothing else was recorded in the window."""
        return self.bound * (self.window.samples - 1) * self.window.sample_ms / 1000


class BucketMeter:
    """The credits of one entity, and its limit.

    used_ms: the time of the last use
    """

    __slots__ = ("_bucket", "bound", "used_ms", "window")

    def __init__(self, window: Window, time_ms: int) -> None:
        self.window = window
        self.bound = 0.0
        self.used_ms = time_ms
        self._bucket = TokenBucket()

    def measure(self, time_ms: int) -> float:
        """Return the credits."""
        return self._bucket.measure(self.window, self.bound, time_ms)

    def find_throttle_ms(self, time_ms: int) -> int:
        """Return the time in ms after which the credits are no longer negative."""
        tokens = self.measure(time_ms)
        return round_ms(-tokens / self.bound * 1000) if tokens < 0 else 0

    def spend(self, value: float, time_ms: int) -> None:
        """Spend credits."""
        self.used_ms = time_ms
        self._bucket.record(self.window, self.bound, value, time_ms)


M = TypeVar("M", bound=RateMeter | BucketMeter)


class Meters(Generic[M]):
    """The limits of one kind, and the meters of those that use them.

    on_removal: called when meters were removed, which nobody must use any more
    """

    def __init__(
        self,
        make: Callable[[Window, int], M],
        window: Window,
        monotonic_ms: Callable[[], int],
        on_removal: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = Limits()
        self._on_removal = on_removal
        self._make = make
        self._window = window
        self._monotonic_ms = monotonic_ms
        # The meters that were examined longest ago come first.
        self._meters: OrderedDict[Owner, M] = OrderedDict()

    def __len__(self) -> int:
        return len(self._meters)

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._meters)

    def list_meters(self, limit: int) -> list[tuple[Owner, M]]:
        """Return up to `limit` meters in use, with their owners."""
        return list(islice(self._meters.items(), limit))

    def find(self, user: str, client_id: str) -> M | None:
        """Return the meter of a client; None if it has no limit."""
        limit = self.limits.find(user, client_id)
        if limit is None or limit.bound == float("inf"):
            return None
        owner = _shorten(limit.owner)
        meter = self._meters.get(owner)
        if meter is None:
            self.remove_idle(_EXAMINED_AT_CREATION)
            if len(self._meters) >= MAX_METERS:
                self._meters.popitem(last=False)
                self._on_removal()
            meter = self._meters[owner] = self._make(self._window, self._monotonic_ms())
        meter.bound = limit.bound
        return meter

    def remove_idle(self, count: int = _EXAMINED_AT_ONCE) -> None:
        """Remove idle meters: examine up to `count`, those first that were examined longest ago."""
        meters = self._meters
        end_ms = self._monotonic_ms() - IDLE_MS
        has_removed = False
        for owner in list(islice(meters, count)):
            if meters[owner].used_ms > end_ms:
                meters.move_to_end(owner)
            else:
                del meters[owner]
                has_removed = True
        if has_removed:
            self._on_removal()


def _shorten(owner: Owner) -> Owner:
    user, client_id = owner
    if len(client_id) <= _MAX_NAME_LENGTH:
        return owner
    return user, hashlib.sha256(client_id.encode()).hexdigest()
