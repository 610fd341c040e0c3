"""Metrics of the log directories."""

from typing import TYPE_CHECKING, Final

from odradek.server.metrics.declaration import Collected, Family, gauge, labels

if TYPE_CHECKING:
    from odradek.log.log_manager import LogManager

OFFLINE_COUNT: Final = gauge("kafka.log:type=LogManager,name=OfflineLogDirectoryCount", "Failed log directories.")
OFFLINE: Final = gauge("kafka.log:type=LogManager,name=LogDirectoryOffline", "1 if the log directory has failed.")

METRICS: Final = (OFFLINE_COUNT, OFFLINE)


def collect_logs(logs: "LogManager") -> Collected:
    """Return the metrics of the log directories."""
    failed = {path: directory.failure is not None for path, directory in logs.log_dirs.by_path.items()}
    yield Family(OFFLINE_COUNT, [("", sum(failed.values()))])
    yield Family(OFFLINE, [(labels(logDirectory=path), int(has_failed)) for path, has_failed in failed.items()])
