"""Steps by which a broker joins its cluster: layout of the store, cluster id, registration of the broker."""

from collections.abc import Callable, Sequence

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.metadata.loader import read_node
from odradek.replication.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    Operation,
    SetData,
    TransactionError,
)


class StartError(Exception):
    """The broker cannot join the cluster; the message is one readable line."""


async def prepare_store(store: MetadataStore, cluster_id: str, *, begins_adoption: bool = False) -> str:
    """Lay out an empty store and return the cluster's id: the given one if the store has none yet.

    Raises StartError if the store has another id. With `begins_adoption` an empty store also gets the mark that an
    adoption is in progress (`adoption`).
    """
    laid_out = [await store.exists(path) for path in (znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH)]
    if None in laid_out:
        await _lay_out(store, cluster_id, [znodes.ADOPTION] if begins_adoption else [])
    stored = await stored_cluster_id(store)
    if cluster_id and stored != cluster_id:
        raise StartError(f"the data directory belongs to cluster {cluster_id}, the metadata store to cluster {stored}")
    return stored


async def _lay_out(store: MetadataStore, cluster_id: str, marks: Sequence[str]) -> None:
    """Create the missing nodes of the layout, the cluster's id last, in one transaction if no other broker does so."""
    nodes: dict[str, bytes | None] = {}
    for path in znodes.PERSISTENT_PATHS:
        parts = path[1:].split("/")
        nodes |= {"/" + "/".join(parts[:depth]): None for depth in range(1, len(parts) + 1)}
    nodes |= dict.fromkeys(marks)
    nodes |= {znodes.CONTROLLER_EPOCH: b"0", znodes.CLUSTER_ID: znodes.encode_cluster_id(cluster_id)}
    while missing := [path for path in nodes if await store.exists(path) is None]:
        try:
            await store.transaction([Create(path, nodes[path]) for path in missing])
        except TransactionError as error:
            if not isinstance(error.cause, NodeExistsError):
                raise


async def stored_cluster_id(store: MetadataStore) -> str:
    """Return the cluster's id in the store. Raises NoNodeError, StoreDamagedError."""
    return await read_node(store, znodes.CLUSTER_ID, lambda node: znodes.decode_cluster_id(node.data))


class Registration:
    """The registration of one broker, in one session after another."""

    def __init__(self, store: MetadataStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._sessions: set[int] = set()

    async def register(self, broker: BrokerMetadata) -> None:
        """Register a broker for the present session. Raises StartError if its id or an address is in use."""
        await self._check_endpoints(broker)
        path = znodes.broker_path(broker.broker_id)
        data = znodes.encode_broker(broker, self._now_ms())
        creation: list[Operation] = [Create(path, ephemeral=True), SetData(path, data, 0)]
        earlier, self._sessions = self._sessions, self._sessions | {self._store.session_id}
        try:
            await self._store.transaction(creation)
        except TransactionError as error:
            if not isinstance(error.cause, NodeExistsError):
                raise
            stat = await self._store.exists(path)
            if stat is not None and stat.ephemeral_owner == self._store.session_id:
                return
            if stat is None or stat.ephemeral_owner not in earlier:
                raise StartError(f"broker id {broker.broker_id} is in use by another broker") from error
            await self._store.transaction([Delete(path), *creation])

    async def _check_endpoints(self, broker: BrokerMetadata) -> None:
        mine = {(e.host, e.port) for e in broker.endpoints if e.port}
        for name in await self._store.get_children(znodes.BROKER_IDS):
            if name == str(broker.broker_id):
                continue
            node = await self._store.get(f"{znodes.BROKER_IDS}/{name}")
            for endpoint in znodes.decode_broker(int(name), node.data, -1).endpoints:
                if (endpoint.host, endpoint.port) in mine:
                    raise StartError(f"broker {name} already advertises {endpoint.host}:{endpoint.port}")
