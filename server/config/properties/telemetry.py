"""Properties of the metrics that clients push (KIP-714)."""

from odradek.properties import PropertySet, integer


class TelemetryProperties(PropertySet):
    """Metrics of clients."""

    telemetry_max_bytes = integer(
        "telemetry.max.bytes",
        1_048_576,
        minimum=1,
        doc="Maximum size of a push of client metrics, compressed.",
    )
    telemetry_max_series = integer(
        "telemetry.max.series",
        50_000,
        minimum=0,
        doc="Most series of client metrics that are kept in memory; further ones are dropped. Apache Kafka has no such "
        "property.",
    )
