"""Numeric settings of the group coordinator."""


class GroupSettings:
    """Broker properties of the classic group protocol and of committed offsets, with Kafka 4.3's defaults."""

    __slots__ = (
        "commit_timeout_ms",
        "initial_rebalance_delay_ms",
        "max_group_size",
        "max_session_timeout_ms",
        "min_session_timeout_ms",
        "new_member_join_timeout_ms",
        "offset_metadata_max_length",
        "offsets_retention_check_interval_ms",
        "offsets_retention_ms",
    )

    def __init__(
        self,
        *,
        min_session_timeout_ms: int = 6_000,
        max_session_timeout_ms: int = 1_800_000,
        initial_rebalance_delay_ms: int = 3_000,
        new_member_join_timeout_ms: int = 300_000,
        max_group_size: int = 2_147_483_647,
        offset_metadata_max_length: int = 4_096,
        commit_timeout_ms: int = 5_000,
        offsets_retention_ms: int = 7 * 24 * 3_600_000,
        offsets_retention_check_interval_ms: int = 600_000,
    ) -> None:
        self.min_session_timeout_ms = min_session_timeout_ms
        self.max_session_timeout_ms = max_session_timeout_ms
        self.initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.new_member_join_timeout_ms = new_member_join_timeout_ms
        self.max_group_size = max_group_size
        self.offset_metadata_max_length = offset_metadata_max_length
        self.commit_timeout_ms = commit_timeout_ms
        self.offsets_retention_ms = offsets_retention_ms
        self.offsets_retention_check_interval_ms = offsets_retention_check_interval_ms
