"""Metrics of requests: numbers, errors, sizes, and times by stage (KIP-188)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from odradek.log.background.histogram import quantiles
from odradek.protocol.errors import ErrorCode, read_error_code
from odradek.server.apis import APIS, PRODUCE_KEY, Api
from odradek.server.measurements.request_times import FETCH_KEY, FOLLOWER, SIZE_UNIT_BYTES, ApiTimes, RequestTimes
from odradek.server.measurements.response_errors import ResponseErrors
from odradek.server.metrics.declaration import QUANTILES, Collected, Family, Sample, histogram, labels, meter

_MBEAN: Final = "kafka.network:type=RequestMetrics"

REQUESTS: Final = meter(
    f"{_MBEAN},name=RequestsPerSec",
    "Requests, by API and version. Those of Fetch are also those of FetchConsumer or FetchFollower.",
)
ERRORS: Final = meter(f"{_MBEAN},name=ErrorsPerSec", "Error codes in responses, by API; NONE for those without one.")
TOTAL: Final = histogram(f"{_MBEAN},name=TotalTimeMs", "Time from the arrival of a request to its response, in ms.")
QUEUE: Final = histogram(f"{_MBEAN},name=RequestQueueTimeMs", "Time before a request is begun, in ms.")
LOCAL: Final = histogram(f"{_MBEAN},name=LocalTimeMs", "Time in the handler, in ms.")
REMOTE: Final = histogram(
    f"{_MBEAN},name=RemoteTimeMs", "Time that a request waits for replicas, records or long work, in ms."
)
THROTTLE: Final = histogram(f"{_MBEAN},name=ThrottleTimeMs", "Time for which a client is throttled, in ms.")
RESPONSE_QUEUE: Final = histogram(f"{_MBEAN},name=ResponseQueueTimeMs", "Time before a response is sent, in ms.")
SEND: Final = histogram(f"{_MBEAN},name=ResponseSendTimeMs", "Time until the socket accepts a response, in ms.")
SIZE: Final = histogram(f"{_MBEAN},name=RequestBytes", "Size of a request, in bytes.")

_STAGES: Final = (
    (TOTAL, "total"),
    (QUEUE, "queue"),
    (LOCAL, "local"),
    (REMOTE, "remote"),
    (THROTTLE, "throttle"),
    (RESPONSE_QUEUE, "response_queue"),
    (SEND, "send"),
)

METRICS: Final = (REQUESTS, ERRORS, *(one for stage, _ in _STAGES for one in stage), *SIZE)

_FRACTIONS: Final = [fraction for fraction, _ in QUANTILES]
_FETCH_NAMES: Final = {b"": "FetchConsumer", FOLLOWER: "FetchFollower"}
_SHOWN: Final = frozenset((APIS[PRODUCE_KEY].name, APIS[FETCH_KEY].name, *_FETCH_NAMES.values()))
"""Requests that dashboards show."""


def collect_requests(times: RequestTimes, errors: ResponseErrors, apis: Iterable[Api]) -> Collected:
    """Return the metrics of requests.

    As in Kafka, the numbers of observations exist from the start for all `apis`, and other numbers of an API from its
    first request. So do its quantiles, which in Kafka are 0 before; here only those of the requests in `_SHOWN` are.
    """
    by_name: dict[str, list[ApiTimes]] = {api.name: [] for api in apis}
    by_name.update((name, []) for name in _FETCH_NAMES.values())
    counts: defaultdict[tuple[str, int], int] = defaultdict(int)
    for code, found in list(times.by_code.items()):
        name, version = APIS[code[1]].name, code[3]
        names = (name, _FETCH_NAMES[code[4:]]) if code[1] == FETCH_KEY else (name,)
        for name in names:
            by_name.setdefault(name, []).append(found)
            counts[name, version] += found.count
    yield Family(REQUESTS, [(labels(request=name, version=version), n) for (name, version), n in counts.items()])
    produces = sum(n for (name, _), n in counts.items() if name == APIS[PRODUCE_KEY].name)
    yield Family(ERRORS, _error_samples(errors, produces))
    yield None
    observations = [(labels(request=name), _count(found)) for name, found in by_name.items()]
    for stage, attribute in _STAGES:
        durations: dict[str, list[float]] = {}
        for name, versions in by_name.items():
            if versions or name in _SHOWN:
                durations[name] = quantiles(_find_recent(versions, attribute), _FRACTIONS)
                yield None
        yield Family(stage.quantiles, _quantile_samples(durations, 1000))
        yield Family(stage.observations, observations)
    sizes: dict[str, list[float]] = {}
    for name, versions in by_name.items():
        if versions or name in _SHOWN:
            sizes[name] = quantiles(_find_sizes(versions), _FRACTIONS)
            yield None
    yield Family(SIZE.quantiles, _quantile_samples(sizes, SIZE_UNIT_BYTES))
    yield Family(SIZE.observations, observations)


def _error_samples(errors: ResponseErrors, produces: int) -> Iterator[Sample]:
    """Return the samples of error codes; the produce fast path does not count its responses, which have no error."""
    counts = errors.counts.copy()
    name = APIS[PRODUCE_KEY].name
    fast = errors.find_uncounted(name, produces)
    if fast:
        counts[name, ErrorCode.NONE] += fast
    for (api, code), count in counts.items():
        yield labels(request=api, error=read_error_code(code).name), count


def _count(found: Iterable[ApiTimes]) -> int:
    """Return the number of requests of several versions; as in Kafka each has a time in every stage."""
    return sum(times.count for times in found)


def _find_recent(found: Iterable[ApiTimes], attribute: str) -> Mapping[int, int]:
    """Return the recent durations of several versions in one stage, by bucket.

    Most requests pass some of the stages without a wait, which is not recorded; their durations are 0.
    """
    merged: defaultdict[int, int] = defaultdict(int)
    for times in found:
        recent: defaultdict[int, int] = getattr(times, attribute).recent_buckets()
        recent[0] += max(0, sum(times.total.recent_buckets().values()) - sum(recent.values()))
        for bucket, count in recent.items():
            merged[bucket] += count
    return merged


def _find_sizes(found: Iterable[ApiTimes]) -> Mapping[int, int]:
    """Return the sizes of recent requests of several versions, by bucket."""
    merged: defaultdict[int, int] = defaultdict(int)
    for times in found:
        for bucket, count in times.size.recent_buckets().items():
            merged[bucket] += count
    return merged


def _quantile_samples(values: Mapping[str, Sequence[float]], factor: int) -> Iterator[Sample]:
    for name, of_name in values.items():
        for (_, label), value in zip(QUANTILES, of_name, strict=True):
            yield labels(request=name, quantile=label), round(value * factor, 3)
