"""All quotas of users and client ids, and the meters of those in use.

The limits are configurations of entities in the metadata store, which may change at any time.
"""

import logging
import math
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from odradek.replication.metadata.image import Configs
from odradek.server.quotas.entities import QuotaEntity, parse_path
from odradek.server.quotas.keys import (
    CLIENT_KEYS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from odradek.server.quotas.limits import Owner
from odradek.server.quotas.meters import BucketMeter, Meters, RateMeter
from odradek.server.quotas.rates import Window

if TYPE_CHECKING:
    from odradek.server.quotas.charge import RequestCharge

logger = logging.getLogger(__name__)

T = TypeVar("T")
Y = TypeVar("Y")


class ClientLimits(NamedTuple):
    """The meters of one client; None for each kind of quota that it does not have."""

    produce: RateMeter | None
    fetch: RateMeter | None
    request: RateMeter | None
    mutation: BucketMeter | None

    @property
    def is_empty(self) -> bool:
        """Return whether the client has no quotas."""
        return self == _UNLIMITED


_UNLIMITED: Final = ClientLimits(None, None, None, None)


class ClientQuotas:
    """The quotas of users and client ids on this broker.

    is_active: some user or client id has a quota. While there is none, requests only read this attribute
    epoch: increases whenever the results of `find` may have changed
    running: the charge of the request that runs on the reactor thread now
    monotonic: the clock of request times, in seconds
    """

    def __init__(
        self, window: Window, mutation_window: Window, monotonic_ms: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self.is_active = False
        self.epoch = 0
        self.running: RequestCharge | None = None
        self.window = window
        self.monotonic_ms = monotonic_ms
        self.monotonic = monotonic
        self._produce = Meters(RateMeter, window, monotonic_ms, self._on_removal)
        self._fetch = Meters(RateMeter, window, monotonic_ms, self._on_removal)
        self._request = Meters(RateMeter, window, monotonic_ms, self._on_removal)
        self._mutation = Meters(BucketMeter, mutation_window, monotonic_ms, self._on_removal)
        self._by_key: Mapping[str, Meters[RateMeter] | Meters[BucketMeter]] = {
            PRODUCER_BYTE_RATE: self._produce,
            CONSUMER_BYTE_RATE: self._fetch,
            REQUEST_PERCENTAGE: self._request,
            CONTROLLER_MUTATION_RATE: self._mutation,
        }

    def update(self, changed: Mapping[str, Configs]) -> None:
        """Apply changed configurations of entities, by path (`EntityListener`)."""
        for path, configs in changed.items():
            entity = parse_path(path)
            if entity is not None and entity.ip is None:
                self._put(entity, path, configs)
        self.is_active = any(meters.limits for meters in self._by_key.values())
        self.epoch += 1

    def _put(self, entity: QuotaEntity, path: str, configs: Configs) -> None:
        for key in CLIENT_KEYS:
            bound = parse_bound(path, key, configs)
            self._by_key[key].limits.put(entity.user, entity.client_id, bound)

    @property
    def measures_time(self) -> bool:
        """Return whether some user or client id has a quota of request time."""
        return bool(self._request.limits)

    def find(self, user: str, client_id: str) -> ClientLimits:
        """Return the quotas of a client. They are valid during this epoch."""
        return ClientLimits(
            self._produce.find(user, client_id),
            self._fetch.find(user, client_id),
            self._request.find(user, client_id),
            self._mutation.find(user, client_id),
        )

    def remove_idle(self) -> None:
        """Remove meters that have not been used for an hour."""
        for meters in self._by_key.values():
            meters.remove_idle()

    def _on_removal(self) -> None:
        self.epoch += 1

    def list_meters(self, key: str, limit: int) -> list[tuple[Owner, RateMeter]]:
        """Return up to `limit` meters in use of the quotas with a key, which is not that of changes of topics."""
        rates = {PRODUCER_BYTE_RATE: self._produce, CONSUMER_BYTE_RATE: self._fetch, REQUEST_PERCENTAGE: self._request}
        return rates[key].list_meters(limit)

    def list_mutation_meters(self, limit: int) -> list[tuple[Owner, BucketMeter]]:
        """Return up to `limit` meters in use of changes of topics."""
        return self._mutation.list_meters(limit)

    def count_meters(self) -> int:
        """Return the number of meters."""
        return sum(map(len, self._by_key.values()))

    def attribute(self, work: Generator[Y, None, T]) -> Generator[Y, None, T]:
        """Return work in slices whose time counts for the request that runs now, if any (`Slices.meter`)."""
        charge = self.running
        return work if charge is None else charge.measure(work)


def parse_bound(path: str, key: str, configs: Configs) -> float | None:
    """Return the limit in a configuration; None if it has none, or an invalid one, which only a tool can write."""
    text = configs.get(key)
    if text is None:
        return None
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if bound > 0:
        return bound
    logger.warning("quota is not valid and has no effect; set it again entity=%s quota=%s value=%r", path, key, text)
    return None
