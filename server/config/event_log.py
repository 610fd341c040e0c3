"""Properties of the log of events."""

from typing import Final

from odradek.properties import PropertySet, string

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
