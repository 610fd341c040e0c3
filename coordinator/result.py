"""Results of a coordinator: records to write, and responses to send once the records are replicated.

A coordinator performs no I/O. It decides a request with a `CoordinatorResult`. The server appends the result's records,
has the shard apply them at once, waits until they are replicated, and gets the responses from the shard. Idea: Apache
Kafka's CoordinatorResult.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from odradek.protocol.errors import ErrorCode

Token = Any
"""Any object that the caller passes with a request; it is returned with the response."""

Response = Any
"""A decoded response message."""

_WRITE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def client_error(write_error: ErrorCode) -> ErrorCode:
    """Return the error that a client gets when writing the coordinator's records failed with `write_error`."""
    return _WRITE_ERRORS.get(write_error, write_error)


class CoordinatorRecord(NamedTuple):
    """A record of an internal topic, encoded with its version prefixes; a null value is a tombstone.

    `change` is for the shard that applies the record at append: for groups the record, decoded, or None if the shard
    has to decode it; for transactions what the shard needs besides the record.
    """

    key: bytes
    value: bytes | None
    change: object = None


class Reply(NamedTuple):
    """The answer to the request that came with `token`."""

    token: Token
    response: Response


class Completion:
    """The rest of a decision: what follows when its records are appended, replicated, or not written."""

    __slots__ = ()

    def applied(self, result: "CoordinatorResult", now_ms: int) -> None:
        """The records are in the log and applied: change what follows from them in memory. `result` is theirs.

        Replies may be added to it, but no records.
        """

    def written(self, result: "CoordinatorResult", now_ms: int) -> None:
        """The records are applied and replicated."""
        raise NotImplementedError

    def failed(self, result: "CoordinatorResult", error: ErrorCode, now_ms: int) -> None:
        """The records were not written, or the shard has resigned; `error` is the one for the response.

        In the first case `applied` was not called, and nothing has changed.
        """
        raise NotImplementedError

    def timed_out(self, result: "CoordinatorResult", error: ErrorCode, now_ms: int) -> None:
        """The records are in the log, but not replicated in time: send the waiting response.

        `error` is the one for the response. In a group shard neither `written` nor `failed` is called afterwards;
        in a transaction shard one of them is, for what was decided, and sends no response.
        """


class ReplyWhenWritten(Completion):
    """Answers one request: with `response` after the write, with an error shaped by `on_error` if it failed."""

    __slots__ = ("on_error", "response", "token")

    def __init__(self, token: Token, response: Response, on_error: Callable[[ErrorCode], Response]) -> None:
        self.token = token
        self.response = response
        self.on_error = on_error

    def written(self, result: "CoordinatorResult", now_ms: int) -> None:
        result.reply(self.token, self.response)

    def failed(self, result: "CoordinatorResult", error: ErrorCode, now_ms: int) -> None:
        result.reply(self.token, self.on_error(error))

    def timed_out(self, result: "CoordinatorResult", error: ErrorCode, now_ms: int) -> None:
        result.reply(self.token, self.on_error(error))


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


class TransactionOutcome(NamedTuple):
    """A decided transaction whose markers are to be written to `partitions`, (topic, index) each.

    Every partition is answered for, one by one, by the shard's `marker_written`. `coordinator_epoch` is the leader
    epoch of the transaction's partition of `__transaction_state`; a marker of an older one is refused.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]


class CoordinatorResult:
    """One decision: records to write, and responses to send once they are replicated.

    `records` empty: send `replies` and have `outcomes` written to their partitions. Otherwise write the records (as one
    batch if `is_atomic`, else in as many as suit; within the transaction of `producer` if there is one), then call the
    shard's `on_appended`, and `on_written` or `on_write_failed`, with this result and go on with what that returns.
    Without records, `after_offset` is the offset of a record that the replies depend on: they wait for its replication
    as if they were the result's; -1 for none.
    """

    __slots__ = ("after_offset", "completions", "is_atomic", "outcomes", "producer", "records", "replies")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.replies: list[Reply] = []
        self.completions: list[Completion] = []
        self.is_atomic = True
        self.producer: TransactionalProducer | None = None
        self.outcomes: list[TransactionOutcome] = []
        self.after_offset = -1

    def reply(self, token: Token, response: Response) -> None:
        self.replies.append(Reply(token, response))

    def answered(self, *, keeps_completions: bool) -> "CoordinatorResult":
        """Return what is left of the result after its requests were answered because the write timed out."""
        left = CoordinatorResult()
        left.records, left.is_atomic, left.producer = self.records, self.is_atomic, self.producer
        left.outcomes = self.outcomes
        if keeps_completions:
            left.completions = self.completions
        return left
