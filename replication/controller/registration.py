"""Steps by which a broker joins its cluster: layout of the store, cluster id, registration of the broker."""

from collections.abc import Callable, Sequence

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.metadata.loader import load_brokers, read_node
from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    TransactionError,
)
from odradek.replication.metadata.znodes import RegistrationMark, Restart


class StartError(Exception):
    """The broker cannot join the cluster; the message is one readable line."""


async def prepare_store(
    store: MetadataStore, cluster_id: str, *, is_new: bool = False, begins_adoption: bool = False
) -> str:
    """Lay out an empty store and return the cluster's id: the given one if the store has none yet.

    Raises StartError if the store has another id, unless `is_new`: then the given id was generated for this start, and
    another broker of the cluster may have been faster. With `begins_adoption` an empty store also gets the mark that an
    adoption is in progress (`adoption`).
    """
    is_new_store = None in [await store.exists(path) for path in (znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH)]
    # A shared store may have been laid out by an earlier version of Kafka, with fewer nodes.
    if is_new_store or store.is_shared:
        await _lay_out(store, cluster_id, [znodes.ADOPTION] if begins_adoption and is_new_store else [])
    stored = await stored_cluster_id(store)
    if cluster_id and stored != cluster_id and not is_new:
        raise StartError(
            f"the data directory belongs to cluster {cluster_id} (cluster.id in meta.properties), but the metadata "
            f"store to cluster {stored}; correct log.dirs"
        )
    return stored


async def _lay_out(store: MetadataStore, cluster_id: str, marks: Sequence[str]) -> None:
    """Create the missing nodes of the layout, the cluster's id last, in one transaction if no other broker does so."""
    nodes: dict[str, bytes | None] = {}
    for path in znodes.PERSISTENT_PATHS + (znodes.SHARED_PATHS if store.is_shared else ()):
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
        self.epoch = -1
        """The epoch of the last registration; -1 before the first."""
        self._first_epoch = -1

    async def register(self, broker: BrokerMetadata, restart: Restart = Restart.LOSSY) -> None:
        """Register a broker for the present session. Raises StartError if its id or an address is in use.

        `restart` describes the first registration of this process; the later ones continue it.
        """
        own = RegistrationMark(restart)
        if self.epoch >= 0:
            own = RegistrationMark(Restart.CONTINUED, self._first_epoch)
        await self._check_endpoints(broker)
        path = znodes.broker_path(broker.broker_id)
        data = znodes.encode_broker(broker, self._now_ms())
        earlier, self._sessions = self._sessions, self._sessions | {self._store.session_id}
        creation: list[Operation] = [Create(path, ephemeral=True), SetData(path, data, 0)]
        replaced: list[Operation] = []
        while True:
            try:
                mark = await self._mark_restart(broker.broker_id, own)
                await self._store.transaction([*replaced, *creation, *mark])
            except TransactionError as error:
                # Meanwhile the end of its session may delete the replaced node, or the controller the mark.
                if not isinstance(error.cause, NoNodeError | BadVersionError | NodeExistsError):
                    raise
            stat = await self._store.exists(path)
            owner = None if stat is None else stat.ephemeral_owner
            if stat is not None and owner == self._store.session_id:
                if self.epoch < 0:
                    self._first_epoch = stat.created_id
                self.epoch = stat.created_id
                return
            if stat is not None and owner not in earlier:
                raise StartError(
                    f"broker id {broker.broker_id} is in use by another broker; change broker.id, or, if this broker "
                    "has crashed, start it again when its session has expired (zookeeper.session.timeout.ms)"
                )
            replaced = [] if stat is None else [Delete(path, stat.version)]

    async def _mark_restart(self, broker_id: int, own: RegistrationMark) -> list[Operation]:
        """Return the change of the mark of a restart (`restarts`), which no other broker needs without a cluster.

        The mark of a restart that no controller has followed remains if that one is worse.
        """
        if not self._store.is_shared:
            return []
        await self._store.ensure_path(znodes.RESTARTS)
        path = znodes.restart_path(broker_id)
        try:
            earlier = await self._store.get(path)
        except NoNodeError:
            return [Create(path, znodes.encode_restart(own))]
        known = znodes.decode_restart(earlier.data)
        worst = known if known.restart < own.restart else own
        return [SetData(path, znodes.encode_restart(worst), earlier.stat.version)]

    async def _check_endpoints(self, broker: BrokerMetadata) -> None:
        mine = {(e.host, e.port) for e in broker.endpoints if e.port}
        names = await self._store.get_children(znodes.BROKER_IDS)
        for other in await load_brokers(self._store, [name for name in names if name != str(broker.broker_id)]):
            for endpoint in other.endpoints:
                if (endpoint.host, endpoint.port) in mine:
                    raise StartError(
                        f"broker {other.broker_id} already advertises {endpoint.host}:{endpoint.port}; "
                        "change advertised.listeners"
                    )
