"""Short notation for histories, for the tests of the checker."""

from odradek.simulation.checks.checker import check
from odradek.simulation.history import (
    CrashKind,
    FinalLog,
    FinalState,
    Guarantee,
    History,
    Isolation,
    Outcome,
    Poll,
    ReadRecord,
    SentRecord,
    TopicSettings,
)

A, B = ("a", 0), ("b", 0)
RU, RC = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


def sent(value):
    return SentRecord(value, b"k" + value, (("h", value),), 1000)


def read(offset, value):
    return ReadRecord(offset, value, b"k" + value, (("h", value),), 1000)


class Story:
    """A history whose values are named by words; details have valid defaults."""

    def __init__(self, **settings):
        self.history = History(lambda: 0, TopicSettings(**settings))
        self.final = FinalState()

    def send(
        self, words, at=None, *, partition=A, producer="p", kind="idempotent", outcome=None, attempts=1, txn=None
    ):
        """Send a batch; with `at` it is acknowledged at that offset, otherwise its outcome is unknown."""
        records = [sent(word.encode()) for word in words.split()]
        guarantee = Guarantee.TRANSACTIONAL if txn else Guarantee(kind)
        send = self.history.begin_send(producer, partition, producer, guarantee, records, transaction=txn)
        for _ in range(attempts):
            self.history.attempt_send(send)
        if outcome is None:
            outcome = Outcome.UNKNOWN if at is None else Outcome.OK
        self.history.end_send(send, outcome, -1 if at is None else at)
        return send

    def begin(self, name="t"):
        return self.history.begin_transaction("p", name)

    def commit(self, txn, outcome=Outcome.OK):
        self.history.request_commit(txn)
        self.history.end_transaction(txn, outcome)

    def abort(self, txn):
        self.history.request_abort(txn)
        self.history.end_transaction(txn, Outcome.FAILED)

    def start_poll(self, start, words, **options):
        """Begin a poll, which `record_poll` ends. A word `-` is an offset that the consumer does not receive."""
        options = {"partition": A, "isolation": RU, "assignment": "c1", "group": None, **options}
        words = words.split()
        end = options.get("end", start + len(words))
        hw = options.get("hw", end)
        return Poll(
            "c",
            self.history.moment(),
            options["partition"],
            options["isolation"],
            options["assignment"],
            start,
            end,
            self.records(words, start),
            hw,
            options.get("lso", hw),
            options["group"],
        )

    def poll(self, start, words, **options):
        self.history.record_poll(self.start_poll(start, words, **options))

    def records(self, words, start=0):
        return tuple(read(start + number, word.encode()) for number, word in enumerate(words) if word != "-")

    def end(self, words, committed=None, partition=A, lso=None):
        """Set the final log, with `-` for a marker; `committed` is the result of a READ_COMMITTED read."""
        words = words.split()
        for isolation, visible in ((RU, words), (RC, words if committed is None else committed.split())):
            stable = len(words) if isolation is RU or lso is None else lso
            self.final.logs[partition, isolation] = FinalLog(self.records(visible), stable, len(words))

    def crash(self, kind=CrashKind.POWER_LOSS):
        self.history.crash(kind)

    def commit_offset(self, offset, outcome=Outcome.OK, group="g", generation=1, txn=None, lost=0):
        commit = self.history.begin_commit("c", group, A, offset, generation, txn)
        for _ in range(lost):
            self.history.lose_commit(commit)
        self.history.end_commit(commit, outcome)
        return commit

    def fetch_offset(self, offset, group="g", stable=True, invoked=None):
        """Fetch a committed offset; `invoked` is the moment of the request, by default that of the response."""
        self.history.record_fetch("c", invoked or self.history.moment(), group, A, offset, stable=stable)

    def list_end(self, offset, isolation=RU, *, leader_epoch=-1):
        self.history.record_end_offset("c", self.history.moment(), A, isolation, offset, leader_epoch)

    def found(self):
        """Return the set of kinds of violations."""
        return {violation.kind.name for violation in check(self.history, self.final)}
