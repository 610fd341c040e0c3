"""Sessions of users: edits with less than half an hour between one and the next.

The state has the edits of each open session, so that the result depends neither on their order nor on the division into
batches. SQL's session_window would suffice for counts and sums, but it cannot count distinct pages.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

PAUSE_MS = 30 * 60 * 1000
STATE = "at_ms BIGINT, page STRING, bytes INT"
SESSION = "user STRING, began_ms BIGINT, ended_ms BIGINT, edits BIGINT, pages BIGINT, bytes BIGINT"

Edit = tuple[int, str, int]


def by_user(edits: DataFrame) -> DataFrame:
    """Return the sessions of a stream of edits with `user`, `page`, `bytes`, `at_ms`, and the event time `at`."""
    return edits.groupBy("user").transformWithStateInPandas(
        statefulProcessor=Sessions(), outputStructType=SESSION, outputMode="append", timeMode="eventtime"
    )


class Sessions(StatefulProcessor):
    """The edits of one user, and a timer for the possible end of each session.

    Names of methods and arguments are those of Spark's interface.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._edits = handle.getListState("edits", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            columns = (frame["at_ms"], frame["page"], frame["bytes"])
            found = [(int(at_ms), str(page), int(size)) for at_ms, page, size in zip(*columns, strict=True)]
            if not found:
                continue
            self._edits.appendList(found)
            for session in parted(found):
                self._handle.registerTimer(session[-1][0] + PAUSE_MS)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Yield the sessions that the watermark has passed, and remove them from the state."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        over: list[list[Edit]] = []
        going_on: list[list[Edit]] = []
        for edits in parted((int(at_ms), str(page), int(size)) for at_ms, page, size in self._edits.get()):
            is_over = edits[-1][0] + PAUSE_MS <= watermark_ms
            (over if is_over else going_on).append(edits)
        if not over:
            return
        kept = [edit for edits in going_on for edit in edits]
        if kept:
            self._edits.put(kept)
        else:
            self._edits.clear()  # Spark takes no list without anything
        yield pd.DataFrame(
            {
                "user": key[0],
                "began_ms": [edits[0][0] for edits in over],
                "ended_ms": [edits[-1][0] for edits in over],
                "edits": [len(edits) for edits in over],
                "pages": [len({page for _, page, _ in edits}) for edits in over],
                "bytes": [sum(size for _, _, size in edits) for edits in over],
            }
        )

    def close(self) -> None:
        """Do nothing: Spark stores the state."""


def parted(edits: Iterable[Edit]) -> list[list[Edit]]:
    """Split edits into sessions, sorted by time."""
    sessions: list[list[Edit]] = []
    for edit in sorted(edits):
        if sessions and edit[0] - sessions[-1][-1][0] < PAUSE_MS:
            sessions[-1].append(edit)
        else:
            sessions.append([edit])
    return sessions
