"""Scenario files of the transaction coordinator; `scenario` describes their format.

    init A t=t v=4                          InitProducerId
    add B x:0,x:1 by=1000/0                 AddPartitionsToTxn by the producer with id 1000 and epoch 0
    end C commit by=1000/0 v=5              EndTxn
    hold-markers                            from here on markers wait for `mark`
    mark x:0 NOT_LEADER_OR_FOLLOWER         result of the write of a marker to a partition
"""

from typing import Any

from odradek.coordinator.result import CoordinatorRecord, TransactionOutcome
from odradek.coordinator.tests.driver import START_MS, run_at_once
from odradek.coordinator.tests.scenario import Player
from odradek.coordinator.tests.transaction_driver import TransactionDriver
from odradek.coordinator.transactions.records import (
    TransactionLogValue,
    TransactionLogValuePartitionsSchema,
    read_transaction_key,
    read_transaction_value,
    transaction_record,
)
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.transaction import STATE_NAMES, TransactionState
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseAddPartitionsToTxnResult,
)
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest

BY_NAME = {name: state for state, name in STATE_NAMES.items()}


def producer(text: str) -> tuple[int, int]:
    """`id/epoch`."""
    producer_id, epoch = text.split("/")
    return int(producer_id), int(epoch)


def partitions(text: str) -> list[tuple[str, int]]:
    """`topic:partition`, separated by commas."""
    pairs = (item.split(":") for item in text.split(",") if item)
    return [(topic, int(index)) for topic, index in pairs]


def topics_of(text: str) -> list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions(text):
        by_topic.setdefault(topic, []).append(index)
    return [
        AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=name, partitions=indexes)
        for name, indexes in by_topic.items()
    ]


class TransactionPlayer(Player[TransactionDriver]):
    """Commands of the transaction coordinator."""

    logger_name = "odradek.coordinator.transactions.transaction"

    def __init__(self) -> None:
        super().__init__(TransactionDriver())

    def use(self, driver: TransactionDriver) -> None:
        super().use(driver)
        self.driver.on_outcome = lambda outcome: self.add_line(self.show_outcome(outcome))

    def do_start(self, **settings: str) -> None:
        properties: dict[str, Any] = {name: int(value) for name, value in settings.items()}
        self.use(TransactionDriver(TransactionSettings(**properties)))
        self.driver.load()

    def do_crash(self) -> None:
        """Lose the unreplicated records, and the responses that depend on them."""
        self.driver.truncate(self.driver.high_watermark)
        self.driver.held.clear()
        self.driver.markers.clear()
        self.driver.is_holding = False
        self.driver.load()

    def do_no_producer_ids(self) -> None:
        self.driver.has_producer_ids = False

    def do_producer_ids(self) -> None:
        self.driver.has_producer_ids = True

    def do_record(
        self, t: str, state: str, *, by: str, prev: str = "-1", next: str = "-1", partitions: str = "",
        timeout: str = "60000", client: str = "2", v: str = "1",
    ) -> None:  # fmt: skip
        """Append a record to the log, which the next load replays."""
        producer_id, epoch = producer(by)
        value = TransactionLogValue(
            producer_id=producer_id,
            previous_producer_id=int(prev),
            next_producer_id=int(next),
            producer_epoch=epoch,
            transaction_timeout_ms=int(timeout),
            transaction_status=BY_NAME[state].value,
            transaction_partitions=None
            if state == "Empty"
            else [
                TransactionLogValuePartitionsSchema(topic=item.name, partition_ids=item.partitions)
                for item in topics_of(partitions)
            ],
            transaction_last_update_timestamp_ms=self.driver.now_ms,
            transaction_start_timestamp_ms=self.driver.now_ms,
            client_transaction_version=int(client),
        )
        self.driver.log.append(transaction_record(t, value, int(v)))

    # -- requests ------------------------------------------------------------------------------------------------

    def do_init(
        self, token: str, *, t: str = "t", timeout: str = "60000", by: str = "-1/-1", v: str = "5",
        two_phase: str = "no", keep: str = "no",
    ) -> None:  # fmt: skip
        producer_id, epoch = producer(by)
        request = InitProducerIdRequest(
            transactional_id=t,
            transaction_timeout_ms=int(timeout),
            producer_id=producer_id,
            producer_epoch=epoch,
            enable2_pc=two_phase == "yes",
            keep_prepared_txn=keep == "yes",
        )
        self.driver.call("init_producer_id", token, request, int(v))

    def do_add(self, token: str, added: str, *, by: str, t: str = "t", v: str = "3", verify: str = "no") -> None:
        producer_id, epoch = producer(by)
        if int(v) < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=t,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics_of(added),
            )
            self.driver.call("add_partitions", token, request, int(v))
            return
        transaction = AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
            transactional_id=t,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=verify == "yes",
            topics=topics_of(added),
        )
        self.driver.call("add_or_verify_partitions", token, transaction, int(v))

    def do_verify(self, token: str, added: str, *, by: str, t: str = "t", v: str = "5") -> None:
        self.do_add(token, added, by=by, t=t, v=v, verify="yes")

    def do_offsets(self, token: str, partition: str, *, by: str, t: str = "t", v: str = "4") -> None:
        """AddOffsetsToTxn for a group in this partition of `__consumer_offsets`."""
        producer_id, epoch = producer(by)
        request = AddOffsetsToTxnRequest(
            transactional_id=t, producer_id=producer_id, producer_epoch=epoch, group_id="g"
        )
        self.driver.call("add_offsets", token, request, int(v), offsets_partition=int(partition))

    def do_end(self, token: str, kind: str, *, by: str, t: str = "t", v: str = "5") -> None:
        producer_id, epoch = producer(by)
        request = EndTxnRequest(
            transactional_id=t, producer_id=producer_id, producer_epoch=epoch, committed=kind == "commit"
        )
        self.driver.call("end_txn", token, request, int(v))

    def do_hold_markers(self) -> None:
        self.driver.is_holding_markers = True

    def do_mark(self, marked: str, error: str = "NONE", *, by: str = "") -> None:
        """With `by`, the result is that of another producer's marker, which no transaction waits for."""
        for topic, index in partitions(marked):
            outcome, partition = self.driver.take_marker(topic, index)
            if by:
                producer_id, epoch = producer(by)
                outcome = outcome._replace(producer_id=producer_id, producer_epoch=epoch)
            self.driver.answer_marker(outcome, partition, ErrorCode[error])

    # -- administration ------------------------------------------------------------------------------------------

    def do_describe(self, *ids: str) -> None:
        for item in self.driver.shard.describe([text.strip("'") for text in ids] or ["t"]):
            name = item.transactional_id or "''"
            if item.error_code:
                self.add_line(f"{name}: {ErrorCode(item.error_code).name}")
                continue
            start = "-" if item.transaction_start_time_ms == -1 else f"+{item.transaction_start_time_ms - START_MS}"
            found = ",".join(f"{topic.topic}:{index}" for topic in item.topics for index in topic.partitions)
            self.add_line(
                f"{name}: {item.transaction_state} {item.producer_id}/{item.producer_epoch} "
                f"timeout={item.transaction_timeout_ms} start={start} partitions={found or '-'}"
            )

    def do_list(self, *, states: str = "", ids: str = "", duration: str = "-1", pattern: str | None = None) -> None:
        try:
            steps = self.driver.shard.list_transactions(
                states.split(",") if states else [],
                [int(item) for item in ids.split(",") if item],
                int(duration),
                pattern,
                self.driver.now_ms,
            )
            listed = run_at_once(steps)
        except KafkaError as error:
            self.add_line(f"transactions: {error.code.name}")
            return
        found = [f"{item.transactional_id}({item.producer_id} {item.transaction_state})" for item in listed]
        self.add_line(f"transactions: {' '.join(found) or '-'}")

    # -- outcome -------------------------------------------------------------------------------------------------

    def show(self, response: Any) -> str:
        if isinstance(response, AddPartitionsToTxnResponse):
            return self.show_topics(response.results_by_topic_v3_and_below)
        if isinstance(response, AddPartitionsToTxnResponseAddPartitionsToTxnResult):
            return f"{response.transactional_id}: {self.show_topics(response.topic_results)}"
        error = ErrorCode(response.error_code).name
        if getattr(response, "producer_id", -1) == -1:
            return error
        return f"{error} {response.producer_id}/{response.producer_epoch}"

    def show_topics(self, topics: Any) -> str:
        return " ".join(
            f"{topic.name}:{item.partition_index}={ErrorCode(item.partition_error_code).name}"
            for topic in topics
            for item in topic.results_by_partition
        )

    def show_outcome(self, outcome: TransactionOutcome) -> str:
        kind = "commit" if outcome.is_commit else "abort"
        marked = " ".join(f"{topic}:{index}" for topic, index in outcome.partitions)
        return (
            f"mark {outcome.transactional_id} {kind} {outcome.producer_id}/{outcome.producer_epoch} {marked} "
            f"coordinator={outcome.coordinator_epoch} version={outcome.transaction_version}"
        )

    def show_record(self, record: CoordinatorRecord) -> str:
        name = read_transaction_key(record.key)
        if record.value is None:
            return f"{name} deleted"
        value = read_transaction_value(record.value)
        marked = [
            f"{topic.topic}:{index}" for topic in value.transaction_partitions or () for index in topic.partition_ids
        ]
        changes = [
            f"{label}={number}"
            for label, number in (
                ("previous", value.previous_producer_id),
                ("next", value.next_producer_id),
            )
            if number not in (-1, value.producer_id)
        ]
        return " ".join(
            [
                f"{name} {STATE_NAMES[TransactionState(value.transaction_status)]} "
                f"{value.producer_id}/{value.producer_epoch}",
                *marked,
                *changes,
                f"client={value.client_transaction_version}",
                *(["(record version 0)"] if record.value[:2] == bytes(2) else []),
            ]
        )


