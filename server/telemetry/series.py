"""The latest values that clients have pushed, for /metrics (KIP-714).

A series is a metric with its labels. Their number is limited for each client and in total; further ones are dropped and
counted. A client's series expire when it does not push them for three push intervals, and soon after its last push.
"""

import sys
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from odradek.server.telemetry.deadlines import Deadlines
from odradek.server.telemetry.names import make_labels, make_metric_name
from odradek.server.telemetry.otlp import (
    Attributes,
    DecodedMetrics,
    HistogramValue,
    Kind,
    Point,
    PointValue,
    SummaryValue,
)

MAX_SERIES_PER_INSTANCE: Final = 2_000
INFO_NAME: Final = "kafka_client_info"
_INFO_HELP: Final = "A client that pushes metrics, with the attributes of its resource."
_UNKNOWN: Final = "unknown"
_STEP: Final = 64


class Sample(NamedTuple):
    """A line of /metrics: `suffix` is appended to the name of the family."""

    suffix: str
    labels: Attributes
    value: float


class MetricFamily(NamedTuple):
    """Samples of one name. `kind` is counter, gauge, histogram, summary or unknown. `samples` is read once."""

    name: str
    kind: str
    help: str
    samples: Iterator[Sample]


class PushingClient(NamedTuple):
    """The client of a push. `labels` are those of all its series.

    expiry_ms: the time after which series expire that are not pushed again
    """

    instance_id: bytes
    labels: Attributes
    expiry_ms: int


class _Series:
    """The value of a series, and when it was pushed."""

    __slots__ = ("size", "updated_ms", "value")

    def __init__(self, size: int, value: PointValue) -> None:
        self.size = size
        self.updated_ms = 0
        self.value = value


class _Family:
    """The series of one name, by instance and labels."""

    __slots__ = ("help", "kind", "members")

    def __init__(self, kind: str, description: str) -> None:
        self.kind = kind
        self.help = description
        self.members: dict[bytes, dict[Attributes, _Series]] = {}


class _Instance:
    """A client: its labels, the attributes of its resource, and the names of its families."""

    __slots__ = ("labels", "names", "resource", "size")

    def __init__(self) -> None:
        self.labels: Attributes = ()
        self.resource: Attributes = ()
        self.names: set[str] = set()
        self.size = 0


class ClientSeries:
    """The series of all clients.

    count: the number of lines in /metrics
    dropped: the number of points that were dropped because of a limit or because they are not supported
    max_series: the limit of `count`
    """

    def __init__(self, max_series: int) -> None:
        self.count = 0
        self.dropped = 0
        self.max_series = max_series
        self._families: dict[str, _Family] = {}
        self._instances: dict[bytes, _Instance] = {}
        self._deadlines: Deadlines[bytes] = Deadlines()

    def put_in_steps(
        self, client: PushingClient, pushed: DecodedMetrics, monotonic_ms: int
    ) -> Generator[None, None, None]:
        """Store the values of a push, and remove what the client has not pushed for `expiry_ms`."""
        self.dropped += pushed.skipped
        try:
            for number, point in enumerate(pushed.points):
                if number % _STEP == _STEP - 1:
                    yield
                # In each step: another push of the client may have removed it meanwhile.
                instance = self._find_instance(client, monotonic_ms)
                if pushed.resource:
                    instance.resource = pushed.resource
                if not self._put(client.instance_id, instance, point, monotonic_ms):
                    self.dropped += 1
            yield from self._remove_old_in_steps(client.instance_id, monotonic_ms - client.expiry_ms)
        finally:
            self._remove_if_empty(client.instance_id)

    def expire_at(self, instance_id: bytes, deadline_ms: int) -> None:
        """Set the time at which the series of a client expire."""
        if instance_id in self._instances:
            self._deadlines.set(instance_id, deadline_ms)

    def remove_idle_in_steps(self, monotonic_ms: int) -> Generator[None, None, None]:
        """Remove the series that have expired."""
        while due := self._deadlines.take_due(monotonic_ms, 1):
            instance = self._instances.pop(due[0], None)
            for name in () if instance is None else instance.names:
                self._remove_member(name, due[0])
            yield

    def collect(self) -> Iterator[MetricFamily]:
        """Iterate over all families. Series that change meanwhile have their old or their new value."""
        clients = list(self._instances.values())
        if clients:
            samples = (Sample("", one.labels + make_labels(one.resource), 1.0) for one in clients)
            yield MetricFamily(INFO_NAME, Kind.GAUGE.value, _INFO_HELP, samples)
        for name in sorted(self._families):
            family = self._families.get(name)
            if family is not None:
                yield MetricFamily(name, family.kind, family.help, self._collect_samples(family))

    def _collect_samples(self, family: _Family) -> Iterator[Sample]:
        for instance_id, member in list(family.members.items()):
            instance = self._instances.get(instance_id)
            if instance is None:
                continue
            for labels, series in list(member.items()):
                yield from _make_samples(instance.labels + labels, series.value)

    def _find_instance(self, client: PushingClient, monotonic_ms: int) -> _Instance:
        instance = self._instances.get(client.instance_id)
        if instance is None:
            instance = self._instances[client.instance_id] = _Instance()
        instance.labels = client.labels
        self._deadlines.set(client.instance_id, monotonic_ms + client.expiry_ms)
        return instance

    def _remove_if_empty(self, instance_id: bytes) -> None:
        instance = self._instances.get(instance_id)
        if instance is not None and not instance.names:
            del self._instances[instance_id]
            self._deadlines.remove(instance_id)

    def _put(self, instance_id: bytes, instance: _Instance, point: Point, monotonic_ms: int) -> bool:
        """Store the value of a point; return whether there was room for it."""
        metric = point.metric
        name = make_metric_name(metric.name, metric.unit, metric.kind)
        family = self._families.get(name)
        if family is not None and not _joins(family, metric.kind):
            return False
        labels = make_labels(point.attributes)
        member = None if family is None else family.members.get(instance_id)
        series = None if member is None else member.get(labels)
        size = _count_samples(point.value)
        if series is None or series.size < size:
            added = size - (0 if series is None else series.size)
            if instance.size + added > MAX_SERIES_PER_INSTANCE or self.count + added > self.max_series:
                return False
            instance.size += added
            self.count += added
        if family is None:
            name = sys.intern(name)
            family = self._families[name] = _Family(metric.kind.value, metric.description)
        elif metric.description and not family.help:
            family.help = metric.description
        if member is None:
            member = family.members[instance_id] = {}
            instance.names.add(name)
        if series is None:
            series = member[labels] = _Series(size, point.value)
        else:
            series.value = _add(series.value, point.value) if metric.is_delta else point.value
        series.size = max(series.size, size)
        series.updated_ms = monotonic_ms
        return True

    def _remove_old_in_steps(self, instance_id: bytes, before_ms: int) -> Generator[None, None, None]:
        """Remove the series that a client has not pushed since `before_ms`."""
        instance = self._instances.get(instance_id)
        for name in () if instance is None else list(instance.names):
            family = self._families.get(name)
            member = None if family is None else family.members.get(instance_id)
            if instance is None or member is None:
                continue
            for labels in [labels for labels, series in member.items() if series.updated_ms < before_ms]:
                size = member.pop(labels).size
                instance.size -= size
                self.count -= size
            if not member:
                instance.names.discard(name)
                self._remove_member(name, instance_id)
            yield

    def _remove_member(self, name: str, instance_id: bytes) -> None:
        family = self._families.get(name)
        if family is None:
            return
        member = family.members.pop(instance_id, {})
        self.count -= sum(series.size for series in member.values())
        if not family.members:
            del self._families[name]


def _joins(family: _Family, kind: Kind) -> bool:
    """Return whether a family may have values of a kind. Counters and gauges of one name make its kind unknown."""
    if family.kind == kind.value:
        return True
    simple = (Kind.COUNTER.value, Kind.GAUGE.value, _UNKNOWN)
    if family.kind not in simple or kind.value not in simple:
        return False
    family.kind = _UNKNOWN
    return True


def _count_samples(value: PointValue) -> int:
    if isinstance(value, HistogramValue):
        return len(value.bounds) + 3
    return len(value.quantiles) + 2 if isinstance(value, SummaryValue) else 1


def _add(before: PointValue, added: PointValue) -> PointValue:
    """Return the sum of values; `added` alone if they cannot be added."""
    if isinstance(before, float) and isinstance(added, float):
        return before + added
    if isinstance(before, HistogramValue) and isinstance(added, HistogramValue) and before.bounds == added.bounds:
        counts = tuple(old + new for old, new in zip(before.counts, added.counts, strict=True))
        observations = before.observations + added.observations
        return HistogramValue(observations, before.total + added.total, added.bounds, counts)
    return added


def _make_samples(labels: Attributes, value: PointValue) -> Iterator[Sample]:
    if isinstance(value, HistogramValue):
        for bound, count in zip(value.bounds, accumulate(value.counts), strict=False):
            yield Sample("_bucket", (*labels, ("le", format_bound(bound))), float(count))
        yield Sample("_bucket", (*labels, ("le", "+Inf")), float(value.observations))
    elif isinstance(value, SummaryValue):
        for quantile, of_quantile in value.quantiles:
            yield Sample("", (*labels, ("quantile", format_bound(quantile))), of_quantile)
    else:
        yield Sample("", labels, value)
        return
    yield Sample("_sum", labels, value.total)
    yield Sample("_count", labels, float(value.observations))


def format_bound(value: float) -> str:
    """Return the text of a number in a label, as Prometheus' clients write it."""
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))
