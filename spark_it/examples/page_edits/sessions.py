"""Sessions of users: sequences of edits with less than half an hour between two edits.

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
    """Processor with the edits of one user as state, and a timer for the possible end of each session.

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
            for session in split_into_sessions(found):
                self._handle.registerTimer(session[-1][0] + PAUSE_MS)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Yield the sessions that the watermark has passed, and remove them from the state."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        ended: list[list[Edit]] = []
        open_sessions: list[list[Edit]] = []
        for edits in split_into_sessions((int(at_ms), str(page), int(size)) for at_ms, page, size in self._edits.get()):
            has_ended = edits[-1][0] + PAUSE_MS <= watermark_ms
            (ended if has_ended else open_sessions).append(edits)
        if not ended:
            return
        kept = [edit for edits in open_sessions for edit in edits]
        if kept:
            self._edits.put(kept)
        else:
            self._edits.clear()  # Spark rejects an empty list
        yield pd.DataFrame(
            {
                "user": key[0],
                "began_ms": [edits[0][0] for edits in ended],
                "ended_ms": [edits[-1][0] for edits in ended],
                "edits": [len(edits) for edits in ended],
                "pages": [len({page for _, page, _ in edits}) for edits in ended],
                "bytes": [sum(size for _, _, size in edits) for edits in ended],
            }
        )

    def close(self) -> None:
        """Do nothing: Spark stores the state."""


def split_into_sessions(edits: Iterable[Edit]) -> list[list[Edit]]:
    """Split edits into sessions, sorted by time."""
    sessions: list[list[Edit]] = []
    for edit in sorted(edits):
        if sessions and edit[0] - sessions[-1][-1][0] < PAUSE_MS:
            sessions[-1].append(edit)
        else:
            sessions.append([edit])
    return sessions
