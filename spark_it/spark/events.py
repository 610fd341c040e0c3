"""Progress events of a query, read as Spark's JSON after each batch.

PySpark's own `lastProgress` and `recentProgress` call Java hundreds of times for each event, and for each of the
hundred events that Spark keeps: that takes longer than most batches.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

Event = Mapping[str, Any]


class Events:
    """The events of one query. Spark makes one when a batch is done, and now and then one of nothing new."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._seen_at: str | None = None

    def new(self) -> list[Event]:
        """Those since the last time, oldest first."""
        last = self._query.lastProgress()
        if last is None or last.timestamp() == self._seen_at:
            return []
        found: list[Event] = []
        for one in reversed(self._query.recentProgress()):
            if one.timestamp() == self._seen_at:
                break
            found.append(json.loads(one.json()))
        self._seen_at = found[0]["timestamp"]
        return found[::-1]


def newest(query: StreamingQuery) -> Event | None:
    """The newest event of a query, None if there is none yet."""
    last: Any = query._jsq.lastProgress()
    event: Event | None = None if last is None else json.loads(last.json())
    return event
