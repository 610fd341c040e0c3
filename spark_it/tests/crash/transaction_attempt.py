"""An attempt at a transaction in a process of its own, which stops at a given moment: a test kills or resumes it.

Each line of standard input is an attempt, as JSON; its outcome is printed. An attempt that stops prints `waiting`, and
continues when it has read another line.
"""

import json
import sys

from odradek.spark_it.exactly_once.slots import BatchTransaction, OffsetTransaction, TransactionalSlot
from odradek.spark_it.exactly_once.transactions import Clients, TopicRecords, write_transaction
from odradek.spark_it.interfaces.sink import SinkError


class Waiting(Clients):
    """Clients whose producers wait before or after their commit, when all records are at the broker."""

    moment = "never"

    def make_producer(self, transactional_id):
        return _Producer(super().make_producer(transactional_id), self.moment)


class _Producer:
    def __init__(self, inner, moment):
        self._inner = inner
        self._moment = moment

    def commit_transaction(self, *arguments):
        assert self._inner.flush(30) == 0
        if self._moment == "before":
            _wait()
        self._inner.commit_transaction(*arguments)
        if self._moment == "after":
            _wait()

    def __getattr__(self, name):
        return getattr(self._inner, name)


def _wait():
    print("waiting", flush=True)
    sys.stdin.readline()


def transaction_of(kind, slot, **fields):
    return (OffsetTransaction if kind == "offsets" else BatchTransaction)(slot=TransactionalSlot(*slot), **fields)


def main():
    for line in sys.stdin:
        given = json.loads(line)
        clients = Waiting(given["servers"])
        object.__setattr__(clients, "moment", given["moment"])
        values = [text.encode() for text in given["values"]]
        records = [TopicRecords(given["topic"], [None] * len(values), values)]
        try:
            said = write_transaction(
                transaction_of(given["kind"], given["slot"], **given["fields"]), records, clients
            )._asdict()
        except SinkError as error:
            said = {"error": type(error).__name__}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
