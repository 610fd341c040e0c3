"""Settings of the transaction coordinator."""


class TransactionSettings:
    """Broker properties of transactions, with Kafka 4.3's defaults.

    `transaction_version` is the level of the finalized feature `transaction.version` (KIP-890): 0, 1 or 2. It applies
    to records and to aborts by the coordinator; for clients the version of their requests applies.
    """

    __slots__ = (
        "abort_timed_out_interval_ms",
        "is_two_phase_commit_enabled",
        "marker_retry_backoff_max_ms",
        "marker_retry_backoff_ms",
        "max_timeout_ms",
        "remove_expired_interval_ms",
        "transaction_version",
        "transactional_id_expiration_ms",
        "write_timeout_ms",
    )

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        max_timeout_ms: int = 900_000,
        transactional_id_expiration_ms: int = 7 * 24 * 3_600_000,
        abort_timed_out_interval_ms: int = 10_000,
        remove_expired_interval_ms: int = 3_600_000,
        is_two_phase_commit_enabled: bool = False,
        marker_retry_backoff_ms: int = 100,
        marker_retry_backoff_max_ms: int = 10_000,
        write_timeout_ms: int = 30_000,
    ) -> None:
        self.transaction_version = transaction_version
        self.max_timeout_ms = max_timeout_ms
        self.transactional_id_expiration_ms = transactional_id_expiration_ms
        self.abort_timed_out_interval_ms = abort_timed_out_interval_ms
        self.remove_expired_interval_ms = remove_expired_interval_ms
        self.is_two_phase_commit_enabled = is_two_phase_commit_enabled
        self.marker_retry_backoff_ms = marker_retry_backoff_ms
        self.marker_retry_backoff_max_ms = marker_retry_backoff_max_ms
        self.write_timeout_ms = write_timeout_ms
