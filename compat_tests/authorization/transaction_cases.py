"""Requests about transactions and producers."""

from typing import Final

from compat_tests.authorization.case import ABSENT, COMMITTED, IDS, NO_PRODUCER, SECRET, Case, named

TRANSACTION_CASES: Final = (
    Case(
        "InitProducerId",
        (0, 4, 5),
        lambda broker, number: {"transactional_id": "initialized", "transaction_timeout_ms": 60_000},
    ),
    Case(
        "InitProducerId",
        (0, 5),
        lambda broker, number: {"transactional_id": None, "transaction_timeout_ms": 60_000},
        label="idempotent",
    ),
    Case(
        "InitProducerId",
        (5,),
        lambda broker, number: {
            "transactional_id": "hidden-transaction",
            "transaction_timeout_ms": 60_000,
            "producer_id": 1,
        },
        label="hidden transaction",
    ),
    Case(
        "AddPartitionsToTxn",
        (0, 3),
        lambda broker, number: {
            "v3_and_below_transactional_id": "transaction",
            "v3_and_below_producer_id": 4711,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": named(partitions=[0, 9]),
        },
    ),
    Case(
        "AddPartitionsToTxn",
        (3,),
        lambda broker, number: {
            "v3_and_below_transactional_id": "transaction",
            "v3_and_below_producer_id": 4711,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": named(partitions=[0])[:1],
        },
        label="one topic",
    ),
    Case(
        "AddPartitionsToTxn",
        (3,),
        lambda broker, number: {
            "v3_and_below_transactional_id": "transaction",
            "v3_and_below_producer_id": 4711,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [*named(partitions=[0])[:1], {"name": "__consumer_offsets", "partitions": [0]}],
        },
        label="internal topic",
    ),
    Case(
        "AddPartitionsToTxn",
        (4, 5),
        lambda broker, number: {
            "transactions": [
                {"transactional_id": name, **NO_PRODUCER, "topics": named(partitions=[0])[:1]} for name in IDS
            ]
        },
    ),
    Case(
        "AddOffsetsToTxn",
        (0, 4),
        lambda broker, number: {"transactional_id": "transaction", **NO_PRODUCER, "group_id": "group"},
    ),
    Case(
        "EndTxn", (0, 5), lambda broker, number: {"transactional_id": "transaction", **NO_PRODUCER, "committed": True}
    ),
    Case(
        "WriteTxnMarkers",
        (1, 2),
        lambda broker, number: {
            "markers": [
                {
                    **NO_PRODUCER,
                    "transaction_result": True,
                    "topics": [{"name": name, "partition_indexes": [0]} for name in (ABSENT, SECRET)],
                    "coordinator_epoch": 0,
                }
            ]
        },
    ),
    Case(
        "TxnOffsetCommit",
        (0, 2, 5),
        lambda broker, number: {
            "transactional_id": "transaction",
            "group_id": "group",
            **NO_PRODUCER,
            "topics": named(**COMMITTED),
        },
    ),
    Case(
        "TxnOffsetCommit",
        (2,),
        lambda broker, number: {
            "transactional_id": "transaction",
            "group_id": "group",
            **NO_PRODUCER,
            "topics": named(**COMMITTED)[2:],
        },
        label="nothing left",
    ),
    Case("DescribeTransactions", (0,), lambda broker, number: {"transactional_ids": [*IDS, "absent-transaction"]}),
    Case("ListTransactions", (0, 2), lambda broker, number: {}),
)
