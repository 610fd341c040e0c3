"""Whoever waits for the disk is answered by a sync that began after the append."""

from odradek.server.flusher import Flusher


class Logs:
    """Syncs end when the test says so."""

    def __init__(self):
        self.under_way = []

    def flush(self, log, now_ms, done):
        self.under_way.append(done)

    def end(self, error=None):
        self.under_way.pop(0)(error)


class Partition:
    log = "log"


def test_who_comes_during_a_sync_shares_the_next():
    logs, partition, answers = Logs(), Partition(), []
    flusher = Flusher(logs, lambda: 0)
    for name in ("first", "second", "third"):
        flusher.flush(partition).addCallback(lambda is_synced, name=name: answers.append((name, is_synced)))
    assert len(logs.under_way) == 1
    logs.end()
    assert answers == [("first", True)]
    assert len(logs.under_way) == 1
    logs.end()
    assert answers == [("first", True), ("second", True), ("third", True)]
    assert logs.under_way == []


def test_a_failed_sync_fails_those_it_was_for_and_only_them():
    logs, partition, answers = Logs(), Partition(), []
    flusher = Flusher(logs, lambda: 0)
    flusher.flush(partition).addCallback(answers.append)
    flusher.flush(partition).addCallback(answers.append)
    logs.end(OSError("disk"))
    logs.end()
    assert answers == [False, True]


def test_a_partition_that_went_offline_fails_at_once():
    partition, answers = Partition(), []
    partition.log = None
    flusher = Flusher(Logs(), lambda: 0)
    for _ in range(2):
        flusher.flush(partition).addCallback(answers.append)
    assert answers == [False, False]


def test_a_client_that_goes_away_leaves_the_others_their_sync():
    logs, partition, answers = Logs(), Partition(), []
    flusher = Flusher(logs, lambda: 0)
    gone = flusher.flush(partition)
    gone.addErrback(lambda failure: None)
    flusher.flush(partition).addCallback(answers.append)
    gone.cancel()
    logs.end()
    logs.end()
    assert answers == [True]
