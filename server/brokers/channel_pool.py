"""One channel to each live broker that requests are sent to."""

from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, MetadataDelta
from odradek.replication.remote import BrokerChannel, BrokerChannels


class ChannelPool:
    """Channels by broker, opened at their first use.

    A channel is closed when its broker is gone, has another address, or has restarted (its registration has another
    epoch); requests without a response then raise BrokerUnavailableError.
    """

    def __init__(self, metadata: ClusterMetadata, channels: BrokerChannels, *, client_id: str, timeout_ms: int) -> None:
        self._metadata = metadata
        self._channels = channels
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._open: dict[int, tuple[BrokerMetadata, BrokerChannel]] = {}
        metadata.listeners.append(self._follow)

    def find(self, broker_id: int) -> BrokerChannel | None:
        """Return the channel to a broker; None if the broker is not live."""
        broker = self._metadata.brokers.get(broker_id)
        if broker is None:
            return None
        opened = self._open.get(broker_id)
        if opened is not None and opened[0] == broker:
            return opened[1]
        self._close(broker_id)
        channel = self._channels.open(broker, client_id=self._client_id, timeout_ms=self._timeout_ms)
        self._open[broker_id] = broker, channel
        return channel

    def close(self) -> None:
        """Close all channels."""
        for broker_id in list(self._open):
            self._close(broker_id)

    def _close(self, broker_id: int) -> None:
        opened = self._open.pop(broker_id, None)
        if opened is not None:
            opened[1].close()

    def _follow(self, delta: MetadataDelta) -> None:
        for broker_id in delta.brokers:
            opened = self._open.get(broker_id)
            if opened is not None and self._metadata.brokers.get(broker_id) != opened[0]:
                self._close(broker_id)
