"""Progress events of a query, read as Spark's JSON after each batch.

PySpark's `lastProgress` and `recentProgress` make hundreds of calls to the JVM for each event, and for each of the
hundred events that Spark retains. That takes longer than most batches.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

Event = Mapping[str, Any]


class Events:
    """The events of one query. Spark emits one after each batch, and occasionally one without new data."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._seen_at: str | None = None

    def read_new(self) -> list[Event]:
        """Return the events since the last call, oldest first."""
        last = self._query.lastProgress()
        if last is None or last.timestamp() == self._seen_at:
            return []
        events: list[Event] = []
        for one in reversed(self._query.recentProgress()):
            if one.timestamp() == self._seen_at:
                break
            events.append(json.loads(one.json()))
        self._seen_at = events[0]["timestamp"]
        return events[::-1]


def read_newest_event(query: StreamingQuery) -> Event | None:
    """Return the newest event of a query; None if there is none yet."""
    last: Any = query._jsq.lastProgress()
    event: Event | None = None if last is None else json.loads(last.json())
    return event
