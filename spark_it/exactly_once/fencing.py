"""Fencing of the topic sink's open transactions, before a reset looks up the pipeline's position.

A task may run on after its driver was killed. If its transaction were committed after the reset, its records would be
visible, but the state after the reset would not accept its marker: the records would be written a second time.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from odradek.spark_it.definition.guarantees import TransactionKind, find_transaction_kind
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.markers import Markers
from odradek.spark_it.exactly_once.transactions import Clients, fence_slot
from odradek.spark_it.state.lock import Lock

_THREADS = 8


def fence_all_slots(pipeline: Pipeline, stateful: str | None, old: Lock | None) -> None:
    """Fence every slot that runs of the pipeline may have; `old` is the lock of the last run. Raises SinkError."""
    kind = find_transaction_kind(pipeline, stateful)
    if old is not None:
        kind = None if old.transaction_kind is None else TransactionKind[old.transaction_kind.upper()]
        pipeline = replace(pipeline, settings=pipeline.settings.replace({"tasks.max": str(old.tasks_max)}))
    if kind is None:
        return
    clients = Clients.of(pipeline.settings)
    slots = Markers(pipeline, kind, clients).list_slots()
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda slot: fence_slot(slot, clients), slots))
