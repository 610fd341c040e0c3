"""Clients whose transactions fail on purpose, in the driver or in worker processes."""

import os
import signal
from dataclasses import dataclass

from odradek.spark_it.exactly_once.slots import TransactionalSlot
from odradek.spark_it.exactly_once.transactions import Clients, renew_marker


@dataclass(frozen=True)
class Killing(Clients):
    """Clients whose producers kill their process before or after the commit, once: the first kill creates `flag`."""

    flag: str = ""
    moment: str = "before"

    def make_producer(self, transactional_id):
        return _Producer(super().make_producer(transactional_id), self.flag, self.moment)


class _Producer:
    def __init__(self, inner, flag, moment):
        self._inner, self._flag, self._moment = inner, flag, moment

    def commit_transaction(self, *arguments):
        assert self._inner.flush(30) == 0
        if self._moment == "before":
            self._die()
        self._inner.commit_transaction(*arguments)
        if self._moment == "after":
            self._die()

    def _die(self):
        try:
            os.close(os.open(self._flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Overtaken(Clients):
    """Clients whose slot, that of a source partition, another producer takes over as soon as the marker is read."""

    def make_consumer(self, group, *, is_stable=True):
        return _OvertakenConsumer(super().make_consumer(group, is_stable=is_stable), self.bootstrap_servers, group)


class _OvertakenConsumer:
    def __init__(self, inner, servers, group):
        self._inner, self._servers, self._group = inner, servers, group

    def committed(self, places, timeout_s):
        found = self._inner.committed(places, timeout_s)
        for place in places:
            slot = TransactionalSlot(
                f"{self._group}:{place.topic}-{place.partition}", self._group, place.topic, place.partition
            )
            renew_marker(slot, Clients(self._servers))
        return found

    def __getattr__(self, name):
        return getattr(self._inner, name)
