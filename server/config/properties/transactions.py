"""Properties of transactions."""

from odradek.properties import PropertySet, UpdateMode, boolean, integer, short


class TransactionProperties(PropertySet):
    """Transactions."""

    transaction_max_timeout_ms = integer(
        "transaction.max.timeout.ms",
        900_000,
        minimum=1,
        doc="Maximum transaction timeout of a producer.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        minimum=1,
        doc="Interval of the check for timed-out transactions.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        minimum=1,
        doc="Interval of the check for idle transactional ids.",
    )
    transaction_partition_verification_enable = boolean(
        "transaction.partition.verification.enable",
        True,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Verify before the first write that the partition was added to the transaction.",
    )
    transaction_two_phase_commit_enable = boolean(
        "transaction.two.phase.commit.enable",
        False,
        doc="Allow producers to take part in two-phase commit (KIP-939).",
    )
    transaction_state_log_num_partitions = integer(
        "transaction.state.log.num.partitions",
        50,
        minimum=1,
        doc="Number of partitions of __transaction_state; fixed once the topic exists.",
    )
    transaction_state_log_replication_factor = short(
        "transaction.state.log.replication.factor",
        3,
        minimum=1,
        doc="Replication factor of __transaction_state; the default is limited by the number of brokers.",
    )
    transaction_state_log_min_isr = integer(
        "transaction.state.log.min.isr",
        2,
        minimum=1,
        doc="min.insync.replicas of __transaction_state; the default is limited by the number of brokers.",
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
        doc="Bytes per read while transactions are loaded; at most 1 MiB.",
    )
    transactional_id_expiration_ms = integer(
        "transactional.id.expiration.ms",
        604_800_000,
        minimum=1,
        doc="Idle time after which a transactional id expires.",
    )
    add_partitions_to_txn_retry_backoff_ms = integer(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        minimum=1,
        doc="Maximum pause of a produce request whose partition cannot be added while the previous transaction ends.",
    )
    add_partitions_to_txn_retry_backoff_max_ms = integer(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        minimum=0,
        doc="Timeout of a produce request whose partition cannot be added while the previous transaction ends.",
    )
