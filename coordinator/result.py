"""Results of a coordinator: records to write, and responses to send after the records are replicated.

A coordinator performs no I/O. It handles a request by returning a `CoordinatorResult`. The server appends the result's
records, makes the shard apply them immediately, waits until they are replicated, and then gets the responses from the
shard. Source of the design: Apache Kafka's CoordinatorResult.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from odradek.protocol.errors import ErrorCode

Token = Any
"""An object that identifies a request. The caller passes it with the request, and the reply contains it."""

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
    """Return the error for the client if the write of the coordinator's records failed with `write_error`."""
    return _WRITE_ERRORS.get(write_error, write_error)


class CoordinatorRecord(NamedTuple):
    """A record of an internal topic, encoded with its version prefixes; a null value is a tombstone.

    `change` is used by the shard when it applies the record at append. For groups it is the decoded record, or None if
    the shard has to decode it; for transactions it contains the data that is not in the record.
    """

    key: bytes
    value: bytes | None
    change: object = None


class Reply(NamedTuple):
    """The response to the request that `token` identifies."""

    token: Token
    response: Response


class Completion:
    """Callbacks of a result, for when its records are applied, replicated, not written, or not replicated in time."""

    __slots__ = ()

    def applied(self, result: "CoordinatorResult", now_ms: int) -> None:
        """Called when the records are in the log and applied: update transient state.

        `result` is the result of the records. Replies may be added to it, but no records.
        """

    def written(self, result: "CoordinatorResult", now_ms: int) -> None:
        """Called when the records are applied and replicated. Replies and new records are added to `result`."""
        raise NotImplementedError

    def failed(self, result: "CoordinatorResult", error: ErrorCode, now_ms: int) -> None:
        """Called when the records are not in the log, or the shard has resigned. `error` is for the response.

        If they are not in the log, `applied` was not called and no state has changed.
        """
        raise NotImplementedError

    def timed_out(self, result: "CoordinatorResult", error: ErrorCode, now_ms: int) -> None:
        """Called when the records are in the log but were not replicated in time: send the response with `error`.

        A group shard calls neither `written` nor `failed` afterwards. A transaction shard calls one of them later, to
        complete the change of state; it then sends no response.
        """


class ReplyWhenWritten(Completion):
    """Sends `response` after the write, or the response that `on_error` returns if the write failed."""

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
    """The producer whose transaction contains the records."""

    producer_id: int
    producer_epoch: int


class TransactionOutcome(NamedTuple):
    """A committed or aborted transaction whose markers are to be written to `partitions`, (topic, index) each.

    The shard's `marker_written` is called for each partition. `coordinator_epoch` is the leader epoch of the
    transaction's partition of `__transaction_state`; a marker with an older one is rejected.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]


class CoordinatorResult:
    """Result of a request or deadline: records to write, and responses to send after their replication.

    If `records` is empty, send `replies` and write the markers of `outcomes`. `after_offset` is then the offset of a
    record on which the replies depend: they wait for its replication; -1 for none.

    Otherwise write the records: as one batch if `is_atomic`, else in any number of batches; in the transaction of
    `producer` if it is set. Then call the shard's `on_appended`, later `on_written` or `on_write_failed`, with this
    result, and handle the result that is returned likewise.
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

    def without_replies(self, *, keeps_completions: bool) -> "CoordinatorResult":
        """Return the remaining result after the responses were sent because the write timed out."""
        remaining = CoordinatorResult()
        remaining.records, remaining.is_atomic, remaining.producer = self.records, self.is_atomic, self.producer
        remaining.outcomes = self.outcomes
        if keeps_completions:
            remaining.completions = self.completions
        return remaining
