"""Metrics of the session with ZooKeeper, by the names in Kafka 3.9; a broker with an embedded store has none."""

from typing import TYPE_CHECKING, Final, cast

from odradek.server.metrics.declaration import Collected, Family, histogram, histogram_families, meter

if TYPE_CHECKING:
    from odradek.replication.metadata.store import MetadataStore
    from odradek.server.stores.zookeeper.store import ZooKeeperStore

_LISTENER: Final = "kafka.server:type=SessionExpireListener"

CONNECTS: Final = meter(f"{_LISTENER},name=ZooKeeperSyncConnectsPerSec", "Connections to ZooKeeper.")
DISCONNECTS: Final = meter(f"{_LISTENER},name=ZooKeeperDisconnectsPerSec", "Losses of such a connection.")
EXPIRATIONS: Final = meter(f"{_LISTENER},name=ZooKeeperExpiresPerSec", "Sessions with ZooKeeper that have expired.")
LATENCY: Final = histogram(
    "kafka.server:type=ZooKeeperClientMetrics,name=ZooKeeperRequestLatencyMs",
    "Time from the sending of a request to ZooKeeper to its result, in ms.",
)

METRICS: Final = (CONNECTS, DISCONNECTS, EXPIRATIONS, *LATENCY)


def find_zookeeper(store: "MetadataStore") -> "ZooKeeperStore | None":
    """Return the store of a broker that uses ZooKeeper, the only one that brokers share."""
    return cast("ZooKeeperStore", store) if store.is_shared else None


def collect_zookeeper(store: "ZooKeeperStore | None") -> Collected:
    """Return the metrics of the session; none without ZooKeeper."""
    if store is None:
        return
    yield Family(CONNECTS, [("", store.connects)])
    yield Family(DISCONNECTS, [("", store.disconnects)])
    yield Family(EXPIRATIONS, [("", store.expirations)])
    if store.request_times is not None:
        yield from histogram_families(LATENCY, store.request_times)
