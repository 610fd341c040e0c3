"""How many rows a frame had, known without reading it a second time."""

import time
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

_WAIT_S = 30.0
_BETWEEN_LOOKS_S = 0.01


class Counted:
    """A frame to be written in place of another, which counts its rows on the way."""

    def __init__(self, frame: DataFrame) -> None:
        self._observation = Observation()
        self.frame = frame.observe(self._observation, f.count(f.lit(1)).alias("rows"))

    def rows(self) -> int:
        """Rows of the frame, once it has been written; 0 if it was not read after all."""
        observed: Any = self._observation._jo
        give_up_at = time.monotonic() + _WAIT_S
        # Spark tells it by a thread of its own; `get` would wait for ever.
        while not observed.future().isCompleted():
            if time.monotonic() > give_up_at:
                return 0
            time.sleep(_BETWEEN_LOOKS_S)
        return int(self._observation.get["rows"])
