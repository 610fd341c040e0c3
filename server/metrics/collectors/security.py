"""Metrics of sessions, and of the quotas of clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from odradek.server.metrics.declaration import GAUGE, Collected, Family, Metric, Sample, gauge, labels
from odradek.server.quotas.keys import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

if TYPE_CHECKING:
    from odradek.server.measurements.authentications import AuthenticationCounts
    from odradek.server.quotas.client_quotas import ClientQuotas
    from odradek.server.quotas.limits import Owner

ALL_EXPIRED: Final = gauge(
    "kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount",
    "Connections that were closed because their clients did not authenticate themselves again.",
)
BYTE_RATE: Final = Metric(
    "kafka_server_quota_byte_rate",
    GAUGE,
    "Bytes per second of a client with a quota, by resource Produce or Fetch.",
    "kafka.server:type=Produce,user=,client-id= byte-rate",
)
REQUEST_TIME: Final = Metric(
    "kafka_server_quota_request_time",
    GAUGE,
    "Percentage of a thread that a client with a quota of request time uses.",
    "kafka.server:type=Request,user=,client-id= request-time",
)

THROTTLE_TIME: Final = Metric(
    "kafka_server_quota_throttle_time",
    GAUGE,
    "Mean of the throttle times in ms of a client with a quota, by resource Produce, Fetch or Request.",
    "kafka.server:type=Produce,user=,client-id= throttle-time",
)

TOKENS: Final = Metric(
    "kafka_server_quota_tokens",
    GAUGE,
    "Changes of topics that a client with a quota of changes may make at once; it is throttled below 0.",
    "kafka.server:type=ControllerMutation,user=,client-id= tokens",
)

METRICS: Final = (ALL_EXPIRED, BYTE_RATE, REQUEST_TIME, THROTTLE_TIME, TOKENS)

_METERS_PER_STEP: Final = 100


def collect_security(counts: "Mapping[str, AuthenticationCounts]") -> Collected:
    """Return the number of sessions that have ended on all listeners."""
    yield Family(ALL_EXPIRED, [("", sum(one.expired for one in counts.values()))])


def collect_quotas(quotas: "ClientQuotas | None", max_clients: int) -> Collected:
    """Return the rates of up to `max_clients` clients of each kind of quota."""
    if quotas is None:
        return
    now_ms = quotas.monotonic_ms()
    resources = {PRODUCER_BYTE_RATE: "Produce", CONSUMER_BYTE_RATE: "Fetch", REQUEST_PERCENTAGE: "Request"}
    samples: dict[str, list[Sample]] = {key: [] for key in resources}
    throttled: list[Sample] = []
    for key in resources:
        for number, (owner, meter) in enumerate(quotas.list_meters(key, max_clients)):
            if number % _METERS_PER_STEP == 0:
                yield None
            name = _label(resources[key], owner)
            samples[key].append((name, round(meter.measure(now_ms), 3)))
            throttled.append((name, 0 if meter.throttling is None else round(meter.throttling.measure(now_ms), 3)))
    yield Family(BYTE_RATE, samples[PRODUCER_BYTE_RATE] + samples[CONSUMER_BYTE_RATE])
    yield Family(REQUEST_TIME, samples[REQUEST_PERCENTAGE])
    yield Family(THROTTLE_TIME, throttled)
    tokens: list[Sample] = []
    for number, (owner, bucket) in enumerate(quotas.list_mutation_meters(max_clients)):
        if number % _METERS_PER_STEP == 0:
            yield None
        tokens.append((_label("ControllerMutation", owner), round(bucket.measure(now_ms), 3)))
    yield Family(TOKENS, tokens)


def _label(resource: str, owner: "Owner") -> str:
    user, client_id = owner
    names = {"resource": resource}
    if user:
        names["user"] = user
    if client_id:
        names["clientId"] = client_id
    return labels(**names)
