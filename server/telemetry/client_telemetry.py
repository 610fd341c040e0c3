"""The requests GetTelemetrySubscriptions and PushTelemetry, and the metrics that clients have pushed (KIP-714).

The broker itself is the receiver of the metrics. It asks for cumulative values, of which a lost push loses none; Apache
Kafka asks for differences. Checks and errors are those of Apache Kafka 4.3's ClientMetricsManager.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.protocol.batches.compression import Codec, CompressionError, DecompressedTooLargeError
from odradek.protocol.batches.streaming import Step, ThreadCall, iter_decompressed
from odradek.protocol.errors import ErrorCode, KafkaError, shorten
from odradek.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from odradek.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.znodes import uuid_text
from odradek.server.request import RequestContext
from odradek.server.telemetry.instances import MIN_EXPIRY_MS, ClientInstance, ClientInstances
from odradek.server.telemetry.names import (
    LABEL_CLIENT_ID,
    LABEL_INSTANCE_ID,
    LABEL_SOFTWARE_NAME,
    LABEL_SOFTWARE_VERSION,
)
from odradek.server.telemetry.otlp import MAX_VALUE_LENGTH, DecodedMetrics, OtlpError, decode_metrics_in_steps
from odradek.server.telemetry.properties import (
    CLIENT_ID,
    CLIENT_INSTANCE_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
)
from odradek.server.telemetry.series import ClientSeries, MetricFamily, PushingClient
from odradek.server.telemetry.subscriptions import Subscriptions
from odradek.server.work.record_work import RecordWork
from odradek.server.work.slices import Slices

logger = logging.getLogger(__name__)

MAX_DECOMPRESSED_BYTES: Final = 8 << 20
"""The decompressed size of a push; `telemetry.max.bytes` limits the compressed one."""

ACCEPTED_CODECS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""In the order of preference, as in Apache Kafka."""

_RESERVED_IDS: Final = (ZERO_UUID, ZERO_UUID[:15] + b"\x01")
_GET_WITHOUT_WAIT: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_LOG_INTERVAL_MS: Final = 60_000

_LABELS: Final = (
    (LABEL_CLIENT_ID, CLIENT_ID),
    (LABEL_INSTANCE_ID, CLIENT_INSTANCE_ID),
    (LABEL_SOFTWARE_NAME, CLIENT_SOFTWARE_NAME),
    (LABEL_SOFTWARE_VERSION, CLIENT_SOFTWARE_VERSION),
)


class TelemetryCounts(NamedTuple):
    """Numbers of instances and series, and of events since the start.

    pushes: pushes whose metrics were stored
    dropped_points: data points that are not supported, or exceeded a limit
    """

    instances: int
    series: int
    pushes: int
    invalid_pushes: int
    throttled_requests: int
    unknown_subscription_requests: int
    dropped_points: int


class ClientTelemetry:
    """Client instances and their metrics.

    max_bytes, max_series: `telemetry.max.bytes`, `telemetry.max.series`
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        *,
        max_bytes: int,
        max_series: int,
        monotonic_ms: Callable[[], int],
        random_uuid: Callable[[], bytes],
        record_work: RecordWork,
        slices: Slices,
    ) -> None:
        self._instances = ClientInstances(subscriptions, random_uuid)
        self._series = ClientSeries(max_series)
        self._max_bytes = max_bytes
        self._monotonic_ms = monotonic_ms
        self._record_work = record_work
        self._slices = slices
        self._is_removing = False
        self._next_log_ms = monotonic_ms()
        self._pushes = self._invalid = self._throttled = self._unknown = 0

    def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        """Return the metrics that the broker wants from the client. Raises KafkaError THROTTLING_QUOTA_EXCEEDED."""
        monotonic_ms = self._monotonic_ms()
        instance_id = request.client_instance_id
        if instance_id == ZERO_UUID:
            instance_id = self._instances.make_id()
        instance = self._instances.find(bytes(instance_id), context, monotonic_ms)
        if not instance.accept_get(monotonic_ms) and instance.last_error not in _GET_WITHOUT_WAIT:
            raise self._throttle(instance)
        instance.last_error = ErrorCode.NONE
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=list(ACCEPTED_CODECS),
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self._max_bytes,
            delta_temporality=False,
            requested_metrics=list(instance.metrics),
        )

    def push(
        self, context: RequestContext, request: PushTelemetryRequest
    ) -> PushTelemetryResponse | Deferred[PushTelemetryResponse]:
        """Store the metrics of a client. Raises KafkaError."""
        if request.client_instance_id in _RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client instance id is reserved")
        monotonic_ms = self._monotonic_ms()
        instance = self._instances.find(bytes(request.client_instance_id), context, monotonic_ms)
        try:
            self._check_push(instance, request, monotonic_ms)
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = request.terminating
        instance.last_error = ErrorCode.NONE
        if not request.metrics:
            self._end_if_terminating(instance)
            return PushTelemetryResponse()
        return self._record_work.run(self._store_in_steps(instance, request), context)

    def remove_idle(self) -> None:
        """Begin to remove clients that have sent no request, and series that were not pushed, for a long time."""
        if self._is_removing:
            return
        self._is_removing = True

        def ended(result: "Failure | None") -> "Failure | None":
            self._is_removing = False
            return None if result is None or isinstance(result.value, SchedulerStopped) else result

        self._slices.run(self._remove_idle_in_steps()).addBoth(ended)

    def collect(self) -> Iterator[MetricFamily]:
        """Iterate over the metrics that clients have pushed. The caller may pause between families and samples."""
        return self._series.collect()

    @property
    def counts(self) -> TelemetryCounts:
        """The present numbers."""
        return TelemetryCounts(
            instances=len(self._instances),
            series=self._series.count,
            pushes=self._pushes,
            invalid_pushes=self._invalid,
            throttled_requests=self._throttled,
            unknown_subscription_requests=self._unknown,
            dropped_points=self._series.dropped,
        )

    def _remove_idle_in_steps(self) -> Generator[None, None, None]:
        monotonic_ms = self._monotonic_ms()
        yield from self._instances.remove_idle_in_steps(monotonic_ms)
        yield from self._series.remove_idle_in_steps(monotonic_ms)

    def _throttle(self, instance: ClientInstance) -> KafkaError:
        self._throttled += 1
        return KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"the request of client instance {uuid_text(instance.id)} precedes the next push interval",
        )

    def _check_push(self, instance: ClientInstance, request: PushTelemetryRequest, monotonic_ms: int) -> None:
        """Raise KafkaError for a push that is not accepted, in the order of Kafka's checks."""
        if instance.is_terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the previous push of the client instance was its last")
        if not instance.accept_push(monotonic_ms) and not request.terminating:
            raise self._throttle(instance)
        if request.subscription_id != instance.subscription_id:
            self._unknown += 1
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription of the client instance is another")
        if request.compression_type not in Codec.__members__.values():
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression type {request.compression_type}"
            )
        if len(request.metrics) > self._max_bytes:
            raise KafkaError(
                ErrorCode.TELEMETRY_TOO_LARGE, f"the push exceeds telemetry.max.bytes, which is {self._max_bytes}"
            )

    def _store_in_steps(
        self, instance: ClientInstance, request: PushTelemetryRequest
    ) -> Generator[Step, None, PushTelemetryResponse]:
        try:
            pushed = yield from _decode_in_steps(request)
        except (CompressionError, OtlpError) as error:
            is_too_large = isinstance(error, DecompressedTooLargeError)
            instance.last_error = ErrorCode.TELEMETRY_TOO_LARGE if is_too_large else ErrorCode.INVALID_RECORD
            self._report_invalid(instance, error)
            raise KafkaError(instance.last_error, str(error)) from None
        attributes = instance.attributes
        labels = tuple((label, attributes[name][:MAX_VALUE_LENGTH]) for label, name in _LABELS)
        client = PushingClient(instance.id, labels, instance.expiry_ms)
        yield from self._series.put_in_steps(client, pushed, self._monotonic_ms())
        self._end_if_terminating(instance)
        self._pushes += 1
        logger.debug(
            "stored metrics of a client client_id=%s client_instance_id=%s software=%s points=%d skipped=%d last=%s",
            shorten(attributes[CLIENT_ID]), attributes[CLIENT_INSTANCE_ID], attributes[CLIENT_SOFTWARE_NAME],
            len(pushed.points), pushed.skipped, request.terminating,
        )  # fmt: skip
        return PushTelemetryResponse()

    def _end_if_terminating(self, instance: ClientInstance) -> None:
        """Keep the last values of a client that has ended until they have been collected once."""
        if instance.is_terminating:
            self._series.expire_at(instance.id, self._monotonic_ms() + MIN_EXPIRY_MS)

    def _report_invalid(self, instance: ClientInstance, error: Exception) -> None:
        self._invalid += 1
        monotonic_ms = self._monotonic_ms()
        if monotonic_ms >= self._next_log_ms:
            self._next_log_ms = monotonic_ms + _LOG_INTERVAL_MS
            logger.warning(
                "metrics of a client cannot be decoded; the client stops pushing client_id=%s software=%s error=%s",
                shorten(instance.attributes[CLIENT_ID]), instance.attributes[CLIENT_SOFTWARE_NAME], error,
            )  # fmt: skip


def _decode_in_steps(request: PushTelemetryRequest) -> Generator[Step, None, DecodedMetrics]:
    """Decompress and decode a push. Raises CompressionError, OtlpError."""
    pieces: list[bytes] = []
    for piece in iter_decompressed(request.compression_type, request.metrics, MAX_DECOMPRESSED_BYTES):
        if isinstance(piece, ThreadCall):
            yield piece
        else:
            pieces.append(piece)
            yield None
    return (yield from decode_metrics_in_steps(b"".join(pieces)))
