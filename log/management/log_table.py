"""The logs of a broker, and partitions that are found but not served."""

from collections.abc import Callable, Iterable

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.found_directories import FoundLog
from odradek.protocol.errors import ErrorCode, KafkaError

Key = tuple[str, int]
"""Topic and partition."""


class LogTable:
    """Logs by topic and partition.

    `future_logs`: copies of logs in other log directories, which will replace them when their move ends
    `offline`: directories of partitions that are not served: the log directory is offline, or the files are damaged
    `topic_ids`: topic ids in the partitions' directories
    `log_counts`: number of logs in each log directory
    `removal_listeners`: called with the key of each log or future log that is not served under it any more, except
        those of a log directory that failed
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.logs: dict[Key, PartitionLog] = {}
        self.future_logs: dict[Key, PartitionLog] = {}
        self.offline: dict[Key, str] = {}
        self.topic_ids: dict[Key, bytes] = {}
        self.log_counts = dict.fromkeys(paths, 0)
        self.removal_listeners: list[Callable[[Key], None]] = []

    def all_logs(self) -> list[PartitionLog]:
        return list(self.logs.values())

    def has(self, key: Key) -> bool:
        """Return whether a partition has a log, which may be offline."""
        return key in self.logs or key in self.offline

    def serves(self, log: PartitionLog) -> bool:
        """Return whether `log` itself is served; false for a deleted log, even if another has its name now."""
        return self.logs.get((log.topic, log.partition)) is log

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return a log, None if there is none. Raises KafkaError KAFKA_STORAGE_ERROR if it is offline."""
        log = self.logs.get((topic, partition))
        if log is None and (topic, partition) in self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic}-{partition} is offline")
        return log

    def add(self, key: Key, log: PartitionLog) -> None:
        """Serve a log."""
        self.logs[key] = log
        self.log_counts[log.log_directory] += 1

    def remove(self, key: Key) -> None:
        """Serve a log no more."""
        self.log_counts[self.logs.pop(key).log_directory] -= 1
        self._notify_removal(key)

    def remove_future(self, key: Key) -> PartitionLog | None:
        """Remove and return the future log of a partition; None if there is none."""
        future = self.future_logs.pop(key, None)
        if future is not None:
            self._notify_removal(key)
        return future

    def serve_future(self, key: Key) -> None:
        """Serve the future log of a partition instead of its current log."""
        self.log_counts[self.logs[key].log_directory] -= 1
        self.add(key, self.future_logs.pop(key))
        self._notify_removal(key)

    def _notify_removal(self, key: Key) -> None:
        for listener in self.removal_listeners:
            listener(key)

    def forget(self, key: Key) -> None:
        """Remove the topic id of a deleted partition, and its entry in `offline`."""
        self.offline.pop(key, None)
        self.topic_ids.pop(key, None)

    def refused_paths(self) -> list[str]:
        """Return the directories of partitions that are not served."""
        return sorted(path for key, path in self.offline.items() if key not in self.logs)

    def found_logs(self) -> list[FoundLog]:
        """Return all partitions, including those that are not served."""
        offline = [FoundLog(*key, self.topic_ids.get(key), -1) for key in self.offline if key not in self.logs]
        return [*(self._found(key, log) for key, log in self.logs.items()), *offline]

    def _found(self, key: Key, log: PartitionLog) -> FoundLog:
        epoch = log.producer_state.producers.coordinator_epoch
        return FoundLog(*key, self.topic_ids.get(key), log.leader_epochs.latest_epoch, epoch)
