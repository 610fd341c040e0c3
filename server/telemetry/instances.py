"""Client instances: their subscription ids, and the times of their requests (KIP-714).

As in Apache Kafka 4.3, the number of instances is limited, and the one that was used least recently is forgotten first.
An instance ends with the connection that created it, or when it has sent no request for three push intervals.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from typing import Final

from odradek.coordinator.steps import run_to_end
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.errors import ErrorCode
from odradek.replication.metadata.znodes import uuid_text
from odradek.server.request import RequestContext
from odradek.server.telemetry.deadlines import Deadlines
from odradek.server.telemetry.properties import (
    ALL_METRICS,
    CLIENT_ID,
    CLIENT_INSTANCE_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
    CLIENT_SOURCE_ADDRESS,
    CLIENT_SOURCE_PORT,
    DEFAULT_INTERVAL_MS,
    Subscription,
)
from odradek.server.telemetry.subscriptions import Subscriptions

MAX_INSTANCES: Final = 16_384
MIN_EXPIRY_MS: Final = 60_000
EXPIRY_INTERVALS: Final = 3

_MATCHED_LENGTH: Final = 128
"""Characters of an attribute that patterns are compared with."""

_REMOVED_PER_STEP: Final = 256
_NEVER_MS: Final = -(1 << 62)


class ClientInstance:
    """A client, in one version of the subscriptions.

    attributes: the attributes that `match` refers to; they remain those of the first request
    """

    __slots__ = (
        "attributes", "id", "interval_ms", "is_terminating", "last_error", "last_get_ms", "last_push_ms",
        "metrics", "subscription_id", "version",
    )  # fmt: skip

    def __init__(
        self,
        instance_id: bytes,
        attributes: Mapping[str, str],
        metrics: tuple[str, ...],
        interval_ms: int,
        version: int,
    ) -> None:
        self.id = instance_id
        self.attributes = attributes
        self.metrics = metrics
        self.interval_ms = interval_ms
        self.version = version
        self.subscription_id = compute_subscription_id(metrics, interval_ms, instance_id)
        self.is_terminating = False
        self.last_error: ErrorCode = ErrorCode.NONE
        self.last_get_ms = self.last_push_ms = _NEVER_MS

    @property
    def expiry_ms(self) -> int:
        """The time without a request after which the client is taken to be gone."""
        return max(MIN_EXPIRY_MS, EXPIRY_INTERVALS * self.interval_ms)

    def accept_get(self, monotonic_ms: int) -> bool:
        """Return whether a push interval has passed since the last request that was accepted."""
        if monotonic_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = monotonic_ms
        return True

    def accept_push(self, monotonic_ms: int) -> bool:
        """Return whether a push interval has passed since the last push.

        The first push after GetTelemetrySubscriptions may be earlier: clients shorten or lengthen the first interval by
        up to a half, so that they do not push at the same time.
        """
        if self.last_get_ms <= self.last_push_ms and monotonic_ms - self.last_push_ms < self.interval_ms:
            return False
        self.last_push_ms = monotonic_ms
        return True


class ClientInstances:
    """The instances by id.

    random_uuid: returns 16 random bytes, a UUID of version 4
    """

    def __init__(self, subscriptions: Subscriptions, random_uuid: Callable[[], bytes]) -> None:
        self._subscriptions = subscriptions
        self._random_uuid = random_uuid
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._deadlines: Deadlines[bytes] = Deadlines()

    def __len__(self) -> int:
        return len(self._instances)

    def make_id(self) -> bytes:
        """Return a new id, as Kafka makes them: its text does not begin with a dash."""
        while True:
            made = self._random_uuid()
            if made not in self._instances and not uuid_text(made).startswith("-"):
                return made

    def find(self, instance_id: bytes, context: RequestContext, monotonic_ms: int) -> ClientInstance:
        """Return the instance in the present version of the subscriptions, made if it is not known."""
        instance = self._instances.get(instance_id)
        if instance is None or instance.version != self._subscriptions.version:
            attributes = _collect_attributes(instance_id, context) if instance is None else instance.attributes
            instance = self._instances[instance_id] = self._make(instance_id, attributes)
            context.telemetry_instance_id = instance_id
            context.on_lost = self._end_connection
        self._instances.move_to_end(instance_id)
        if len(self._instances) > MAX_INSTANCES:
            oldest_id, _ = self._instances.popitem(last=False)
            self._deadlines.remove(oldest_id)
        self._deadlines.set(instance_id, monotonic_ms + instance.expiry_ms)
        return instance

    def remove_idle_in_steps(self, monotonic_ms: int) -> Generator[None, None, None]:
        """Remove the instances that have sent no request for three push intervals."""
        while due := self._deadlines.take_due(monotonic_ms, _REMOVED_PER_STEP):
            for instance_id in due:
                self._instances.pop(instance_id, None)
            yield

    def _make(self, instance_id: bytes, attributes: Mapping[str, str]) -> ClientInstance:
        """Make an instance with all metrics that matching subscriptions have, and the shortest of their intervals."""
        metrics: set[str] = set()
        interval_ms = DEFAULT_INTERVAL_MS
        for subscription in self._subscriptions.parsed.values():
            if _matches(subscription, attributes):
                metrics.update(subscription.metrics)
                interval_ms = min(interval_ms, subscription.interval_ms)
        wanted = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        return ClientInstance(instance_id, attributes, wanted, interval_ms, self._subscriptions.version)

    def _end_connection(self, context: RequestContext) -> None:
        instance_id = context.telemetry_instance_id
        if instance_id is not None:
            self._instances.pop(instance_id, None)
            self._deadlines.remove(instance_id)


def compute_subscription_id(metrics: tuple[str, ...], interval_ms: int, instance_id: bytes) -> int:
    """Return the CRC-32C of the metrics and the interval, combined with the instance's id, as Kafka computes it.

    Kafka's order of the metrics is that of a hash set, and not reproduced here: clients do not compute this number.
    """
    checksum = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    high, low = struct.unpack(">QQ", instance_id)
    mixed = high ^ low
    value: int = (checksum ^ mixed >> 32 ^ mixed) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _collect_attributes(instance_id: bytes, context: RequestContext) -> dict[str, str]:
    name, version = context.client_software
    attributes = {
        CLIENT_INSTANCE_ID: uuid_text(instance_id),
        CLIENT_ID: context.client_id,
        CLIENT_SOFTWARE_NAME: name,
        CLIENT_SOFTWARE_VERSION: version,
        CLIENT_SOURCE_ADDRESS: context.client_host.removeprefix("/"),
        CLIENT_SOURCE_PORT: str(context.client_port),
    }
    return {name: value[:_MATCHED_LENGTH] for name, value in attributes.items()}


def _matches(subscription: Subscription, attributes: Mapping[str, str]) -> bool:
    return all(run_to_end(pattern.match(attributes[parameter])) for parameter, pattern in subscription.patterns)
