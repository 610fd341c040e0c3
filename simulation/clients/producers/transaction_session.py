"""An instance of a transactional producer, in both protocol versions.

V1 (KIP-98): partitions and groups are added to the transaction before they are written to; the epoch does not change.
V2 (KIP-890): a write adds its partition implicitly, and each end of a transaction returns the next epoch.

The methods raise FencedProducer if the instance has to be replaced, and MustAbort if only the transaction has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import NEEDS_IDS, RETRIABLE, TRANSACTION, GaveUp, Link, Versions
from odradek.simulation.clients.producers.batches import batch_of, draw_packing
from odradek.simulation.clients.producers.produce import Produced, is_unwritten, parse_produced, produce_request
from odradek.simulation.history import (
    Guarantee,
    History,
    OffsetCommit,
    Outcome,
    Partition,
    Send,
    SentRecord,
    Transaction,
)

_INIT, _ADD_PARTITIONS, _TXN_OFFSET_COMMIT, _END, _PRODUCE = 22, 24, 28, 26, 0
_MOST_ATTEMPTS: Final = 12

FATAL: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Errors after which a producer has to be replaced; INVALID_PRODUCER_EPOCH of a write only ends the transaction."""
GROUP_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


class Flow(Enum):
    """The transaction protocol of a client, by its level of transaction.version."""

    V1 = 1
    V2 = 2


_LIMITS: Final = {
    Flow.V1: {
        _PRODUCE: (7, 11),
        _INIT: (3, 5),
        _ADD_PARTITIONS: (0, 3),
        _TXN_OFFSET_COMMIT: (3, 4),
        _END: (0, 4),
    },
    Flow.V2: {_PRODUCE: (12, 13), _INIT: (4, 5), _TXN_OFFSET_COMMIT: (5, 5), _END: (5, 5)},
}


class FencedProducer(Exception):  # noqa: N818 - an event, not a programming error
    """Another instance has taken over, or the coordinator has no state of this one."""


class MustAbort(Exception):  # noqa: N818 - an event, not a programming error
    """The transaction cannot be committed."""


class TransactionalSession:
    """A producer instance: `start`, then repeatedly `begin`, `write`, and `commit` or `abort`."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        transactional_id: str,
        flow: Flow,
        timeout_ms: int,
        link: Link | None = None,
    ) -> None:
        self.name = name
        self.flow = flow
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.link = link or Link(world, history, name, random, Versions(random, NEEDS_IDS | _LIMITS[flow]))
        self.transaction: Transaction | None = None
        self._history = history
        self._random = random
        self._packing = draw_packing(random)
        self._producer_id = self._epoch = -1
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition | str] = set()
        self._needs_bump = False

    async def start(self) -> None:
        """Take over the transactional id. Raises GaveUp."""
        await self.link.find_coordinator(self.transactional_id, TRANSACTION)
        await self._init(-1, -1)

    async def _init(self, producer_id: int, epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        response = await self.link.request_until(lambda: request, lambda answer: int(answer.error_code))
        if response.error_code in FATAL:
            raise FencedProducer(self.name)
        if response.error_code != ErrorCode.NONE:
            self._history.note_odd(self.name, f"InitProducerId: {ErrorCode(response.error_code).name}")
            raise GaveUp(self.name)
        self._take(response.producer_id, response.producer_epoch)

    def _take(self, producer_id: int, epoch: int) -> None:
        """Set the producer id and epoch; sequences restart if either has changed."""
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._sequences.clear()
            self._history.note_producer_id(self.name, producer_id, epoch, self.transactional_id)

    def begin(self) -> Transaction:
        """Begin a transaction; no request is sent."""
        self._added.clear()
        self.transaction = self._history.begin_transaction(self.name, self.transactional_id)
        return self.transaction

    async def write(self, records: Mapping[Partition, Sequence[SentRecord]]) -> None:
        """Write a batch to each partition, with retries. Raises MustAbort or FencedProducer."""
        if self.flow is Flow.V1:
            await self._add_partitions(list(records))
        sends = {partition: self._begin_send(partition, batch) for partition, batch in records.items()}
        sequences = {partition: self._take_sequence(partition, len(batch)) for partition, batch in records.items()}
        doubtful: set[Partition] = set()
        try:
            for attempt in range(_MOST_ATTEMPTS):
                try:
                    answers = await self._attempt(sends, sequences)
                except ConnectionLost:
                    doubtful.update(sends)
                else:
                    self._settle(sends, answers, doubtful)
                if not sends:
                    return
                await self.link.back_off(attempt)
            raise MustAbort(f"{self.name} could not write")
        finally:
            for send in sends.values():
                if send.outcome is Outcome.PENDING:
                    self._needs_bump = True
                    self._history.end_send(send, Outcome.UNKNOWN if send.attempts else Outcome.FAILED)

    def _begin_send(self, partition: Partition, records: Sequence[SentRecord]) -> Send:
        return self._history.begin_send(
            self.name, partition, self.name, Guarantee.TRANSACTIONAL, records, transaction=self.transaction
        )

    def _take_sequence(self, partition: Partition, count: int) -> int:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + count
        return sequence

    async def _attempt(
        self, sends: Mapping[Partition, Send], sequences: Mapping[Partition, int]
    ) -> dict[Partition, Produced]:
        batches = {
            partition: batch_of(
                send.records, self._packing, (self._producer_id, self._epoch, sequences[partition]), transactional=True
            )
            for partition, send in sends.items()
        }
        request = await produce_request(self.link, batches, -1, self.transactional_id)
        for partition, send in sends.items():
            identity = self._producer_id, self._epoch, sequences[partition]
            self._history.attempt_send(send, f"identity {identity} {self._packing}")
        return await parse_produced(self.link, await self.link.request(request))

    def _settle(
        self, sends: dict[Partition, Send], answers: dict[Partition, Produced], doubtful: set[Partition]
    ) -> None:
        failure: Exception | None = None
        for partition, answer in answers.items():
            send = sends[partition]
            if answer.code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._history.end_send(send, Outcome.OK, answer.base_offset, answer.log_append_time)
                del sends[partition]
            elif answer.code in RETRIABLE:
                if not is_unwritten(self._history, answer.code):
                    doubtful.add(partition)
            else:
                certain = is_unwritten(self._history, answer.code) and partition not in doubtful
                outcome = Outcome.FAILED if certain else Outcome.UNKNOWN
                name = ErrorCode(answer.code).name
                self._history.end_send(send, outcome, error=name)
                self._needs_bump = True
                is_fatal = answer.code in FATAL and answer.code != ErrorCode.INVALID_PRODUCER_EPOCH
                failure = FencedProducer(name) if is_fatal else MustAbort(name)
        if failure is not None:
            raise failure

    async def _add_partitions(self, partitions: Sequence[Partition]) -> None:
        missing = [partition for partition in partitions if partition not in self._added]
        if not missing:
            return
        topics: dict[str, AddPartitionsToTxnRequestAddPartitionsToTxnTopic] = {}
        for topic, index in missing:
            row = topics.setdefault(topic, AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=topic, partitions=[]))
            row.partitions.append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def code_of(answer: Any) -> int:
            rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
            return next((row.partition_error_code for row in rows if row.partition_error_code), 0)

        self._raise_for(code_of(await self.link.request_until(lambda: request, code_of)))
        self._added.update(missing)

    async def commit_offsets(
        self, group: str, offsets: Mapping[Partition, int], generation: int, member: str
    ) -> None:
        """Commit offsets of a group within the transaction (KIP-447). Raises MustAbort or FencedProducer."""
        if self.flow is Flow.V1:
            await self._add_offsets(group)
        commits = {
            partition: self._history.begin_commit(
                self.name, group, partition, offset, generation, transaction=self.transaction
            )
            for partition, offset in offsets.items()
        }
        request = self._offsets_request(group, offsets, generation, member)

        def code_of(answer: Any) -> int:
            rows = [row for topic in answer.topics for row in topic.partitions]
            return next((row.error_code for row in rows if row.error_code), 0)

        code = -1
        try:
            code = code_of(await self.link.request_until(lambda: request, code_of))
        finally:
            self._end_commits(commits, code)
        if code in GROUP_ERRORS:
            raise MustAbort(ErrorCode(code).name)
        self._raise_for(code)

    def _end_commits(self, commits: Mapping[Partition, OffsetCommit], code: int) -> None:
        for commit in commits.values():
            outcome = Outcome.OK if code == ErrorCode.NONE else Outcome.UNKNOWN
            self._history.end_commit(commit, outcome, error=ErrorCode(code).name if code else "")

    async def _add_offsets(self, group: str) -> None:
        if group in self._added:
            return
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=group,
        )
        response = await self.link.request_until(lambda: request, lambda answer: int(answer.error_code))
        self._raise_for(response.error_code)
        self._added.add(group)

    def _offsets_request(
        self, group: str, offsets: Mapping[Partition, int], generation: int, member: str
    ) -> TxnOffsetCommitRequest:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (topic, index), offset in offsets.items():
            row = topics.setdefault(topic, TxnOffsetCommitRequestTopic(name=topic, partitions=[]))
            row.partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=None
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id=generation,
            member_id=member,
            topics=list(topics.values()),
        )

    def _raise_for(self, code: int) -> None:
        if code in FATAL:
            raise FencedProducer(ErrorCode(code).name)
        if code == ErrorCode.UNKNOWN_SERVER_ERROR or code == ErrorCode.INVALID_REQUEST:
            self._history.note_odd(self.name, f"error {ErrorCode(code).name}")
        if code != ErrorCode.NONE:
            raise MustAbort(ErrorCode(code).name)

    async def commit(self) -> None:
        """Commit. Raises FencedProducer if the transaction is not committed or its outcome is unknown."""
        transaction = self._take_transaction()
        is_empty = not transaction.sends and not transaction.offsets
        if is_empty:
            self._history.end_transaction(transaction, Outcome.FAILED, "empty")
            return
        attempts = 0

        def request() -> EndTxnRequest:
            nonlocal attempts
            attempts += 1
            self._history.request_commit(transaction)
            return self._end_request(committed=True)

        outcome, error = Outcome.UNKNOWN, ""
        try:
            response = await self.link.request_until(request, lambda answer: int(answer.error_code))
            error = ErrorCode(response.error_code).name
            if response.error_code == ErrorCode.NONE:
                outcome = Outcome.OK
            elif attempts == 1:
                outcome = Outcome.FAILED
        finally:
            self._history.end_transaction(transaction, outcome, error)
        self._ended(response)

    async def abort(self) -> None:
        """Abort. Raises FencedProducer; the transaction is then aborted by timeout or by the next instance."""
        transaction = self._take_transaction()
        # Without AddPartitionsToTxn of a V1 producer, the coordinator has no transaction.
        is_known = bool(transaction.sends or transaction.offsets or self._added)

        def request() -> EndTxnRequest:
            self._history.request_abort(transaction)
            return self._end_request(committed=False)

        response = None
        try:
            if is_known:
                response = await self.link.request_until(request, lambda answer: int(answer.error_code))
        finally:
            error = "" if response is None else ErrorCode(response.error_code).name
            self._history.end_transaction(transaction, Outcome.FAILED, error)
        if response is not None:
            self._ended(response)
        if self.flow is Flow.V1 and self._needs_bump:
            await self._init(self._producer_id, self._epoch)
        self._needs_bump = False

    def abandon(self) -> None:
        """End without EndTxn; the transaction stays open until its timeout or the start of another instance."""
        if self.transaction is not None:
            self._history.end_transaction(self._take_transaction(), Outcome.FAILED, "abandoned")
        self.link.close()

    def _take_transaction(self) -> Transaction:
        transaction, self.transaction = self.transaction, None
        assert transaction is not None
        return transaction

    def _end_request(self, *, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=committed,
        )

    def _ended(self, response: Any) -> None:
        code = response.error_code
        if code in FATAL:
            raise FencedProducer(ErrorCode(code).name)
        if code != ErrorCode.NONE:
            self._history.note_odd(self.name, f"EndTxn: {ErrorCode(code).name}")
            raise FencedProducer(ErrorCode(code).name)
        if self.flow is Flow.V2:
            self._take(response.producer_id, response.producer_epoch)
