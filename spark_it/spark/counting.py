"""The count of a frame's rows while it is written."""

import time

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from odradek.spark_it.spark.internals import wait_for_metrics

_WAIT_S = 30.0


class CountedFrame:
    """A frame with an observation that counts its rows; `frame` is to be written instead of the original frame."""

    def __init__(self, frame: DataFrame) -> None:
        self._observation = Observation()
        self.frame = frame.observe(self._observation, f.count(f.lit(1)).alias("rows"))

    def get_row_count(self) -> int:
        """Return the number of rows written; 0 if the frame was not computed."""
        metrics = wait_for_metrics(self._observation, time.monotonic() + _WAIT_S)
        return 0 if metrics is None else int(metrics["rows"])
