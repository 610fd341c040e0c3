"""A log line for each change of the live brokers in the metadata of a member."""

import logging

from odradek.replication.metadata.image import ClusterMetadata, MetadataDelta

logger = logging.getLogger(__name__)


class LiveBrokersLog:
    """Logs the ids of the live brokers in `metadata` when they change.

    Programs that start clusters wait for this line (`odradek.broker_log`).
    """

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._logged: set[int] = set()

    def follow(self) -> None:
        """Log the changes from now on."""
        self._metadata.listeners.append(self._on_metadata)

    def _on_metadata(self, delta: MetadataDelta) -> None:
        if delta.brokers and self._metadata.brokers.keys() != self._logged:
            self._logged = set(self._metadata.brokers)
            logger.info("live brokers ids=%s", ",".join(map(str, sorted(self._logged))))
