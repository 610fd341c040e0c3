"""Ends what attempts of earlier runs have open in the topic sink, before a reset looks where the pipeline is.

A task may outlive its driver. If it committed after the reset, its records would be there, but the offset that says so
would be older than the one that the reset commits, and not count: they would be written a second time.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from odradek.spark_it.definition.guarantees import Units, units
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.markers import Markers
from odradek.spark_it.exactly_once.transactions import Clients, fence
from odradek.spark_it.state.lock import Lock

_THREADS = 8


def fence_all(pipeline: Pipeline, stateful: str | None, old: Lock | None) -> None:
    """Fences every lane that runs of the pipeline may have; `old` is the lock of the last one. Raises SinkError."""
    kind = units(pipeline, stateful)
    if old is not None:
        kind = None if old.units is None else Units[old.units.upper()]
        pipeline = replace(pipeline, settings=pipeline.settings.replace({"tasks.max": str(old.tasks_max)}))
    if kind is None:
        return
    clients = Clients.of(pipeline.settings)
    lanes = Markers(pipeline, kind, clients).lanes()
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda lane: fence(lane, clients), lanes))
