"""Writes dead letters to their topic, at least once: a batch that is repeated writes them again."""

from pyspark.sql import DataFrame

from odradek.spark_it.spec import Pipeline


class DeadLetterWriter:
    """Frames with the columns `key`, `value` and `headers` go to the dead-letter topic."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def write(self, dead: DataFrame) -> int:
        """Writes them all and returns how many they are. Raises sinks.SinkError."""
        raise NotImplementedError
