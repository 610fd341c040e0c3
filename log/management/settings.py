"""The broker's properties that the log manager uses."""

from typing import NamedTuple

from odradek.properties import INT64_MAX


class LogManagerSettings(NamedTuple):
    """Properties of the broker, by their names in snake case."""

    log_retention_check_interval_ms: int = 300_000
    log_initial_task_delay_ms: int = 30_000
    log_flush_scheduler_interval_ms: int = INT64_MAX
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    num_recovery_threads_per_data_dir: int = 2
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_io_buffer_size: int = 524_288
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = float("inf")

    @classmethod
    def of(cls, config: object) -> "LogManagerSettings":
        """Copy the properties from an object that has them as attributes."""
        return cls(**{name: getattr(config, name) for name in cls._fields})
