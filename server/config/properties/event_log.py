"""Properties of the log of events."""

from typing import Final

from odradek.properties import PropertySet, UpdateMode, long, string

LOG_FORMATS: Final = ("text", "json")


class EventLogProperties(PropertySet):
    """Log of events on standard output."""

    log_format = string(
        "log.format",
        "text",
        choices=LOG_FORMATS,
        doc="Format of the lines on standard output: text, or json with an object in each line. Apache Kafka has no "
        "such property.",
    )
    request_slow_log_ms = long(
        "request.slow.log.ms",
        -1,
        minimum=-1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Duration of a request from which it is logged, with the times of its stages; -1 for none. The wait of a "
        "fetch for records, and that of a member for its group, does not count. Apache Kafka has no such property.",
    )
