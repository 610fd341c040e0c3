"""Transactions."""

from odradek.properties import PropertySet, UpdateMode, boolean, integer, short


class TransactionProperties(PropertySet):
    """Transactions."""

    transaction_max_timeout_ms = integer(
        "transaction.max.timeout.ms",
        900_000,
        minimum=1,
        doc="Longest timeout a transactional producer may ask for.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        minimum=1,
        doc="Time between two looks for transactions to abort.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        minimum=1,
        doc="Time between two looks for idle transactional ids.",
    )
    transaction_partition_verification_enable = boolean(
        "transaction.partition.verification.enable",
        True,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Whether a partition checks that a transaction knows it before the first write.",
    )
    transaction_two_phase_commit_enable = boolean(
        "transaction.two.phase.commit.enable",
        False,
        doc="Whether producers may take part in two-phase commit (KIP-939).",
    )
    transaction_state_log_num_partitions = integer(
        "transaction.state.log.num.partitions",
        50,
        minimum=1,
        doc="Partitions of __transaction_state; fixed once it exists.",
    )
    transaction_state_log_replication_factor = short(
        "transaction.state.log.replication.factor",
        3,
        minimum=1,
        doc="Replicas of __transaction_state; unless set, no more than there are brokers.",
    )
    transaction_state_log_min_isr = integer(
        "transaction.state.log.min.isr",
        2,
        minimum=1,
        doc="min.insync.replicas of __transaction_state; unless set, no more than there are brokers.",
    )
    transaction_state_log_segment_bytes = integer(
        "transaction.state.log.segment.bytes",
        104_857_600,
        minimum=1,
        doc="Segment size of __transaction_state.",
    )
    transaction_state_log_load_buffer_size = integer(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        minimum=1,
        doc="Bytes read at a time when transactions are loaded; at most 1 MiB.",
    )
    transactional_id_expiration_ms = integer(
        "transactional.id.expiration.ms",
        604_800_000,
        minimum=1,
        doc="Idle time after which a transactional id is forgotten.",
    )
    add_partitions_to_txn_retry_backoff_ms = integer(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        minimum=1,
        doc="Longest pause of a produce that cannot add its partition yet, as the transaction before is still ending.",
    )
    add_partitions_to_txn_retry_backoff_max_ms = integer(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        minimum=0,
        doc="How long a produce goes on trying; then the client is told.",
    )
