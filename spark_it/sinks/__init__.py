"""Sinks."""

from odradek.spark_it.sink_interface import SinkError

__all__ = ["SinkError"]
