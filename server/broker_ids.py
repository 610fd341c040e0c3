"""The id of a cluster member without `broker.id`: that in meta.properties, otherwise one that ZooKeeper generates."""

import logging
from collections.abc import Sequence

from odradek.log.storage.filesystem import FileSystem
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import MetadataStore
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.store_location import open_zookeeper_store, read_metas

logger = logging.getLogger(__name__)


async def settle_broker_id(environment: Environment, config: BrokerConfig) -> BrokerConfig:
    """Return the configuration of a broker with its id. Raises StartError, MetadataStoreError.

    An id that was generated is in meta.properties of the log directories once they are loaded.
    """
    if config.zookeeper_connect is None or config.node_id >= 0 or not config.broker_id_generation_enable:
        return config
    found = _find_ids(environment.fs, [environment.absolute_path(directory) for directory in config.data_dirs])
    if len(found) > 1:
        places = ", ".join(f"{broker_id} in {directory}" for broker_id, directory in found.items())
        raise StartError(f"the log directories belong to different brokers: {places}; check log.dirs")
    for broker_id in found:
        return config.with_generated_id(broker_id)
    store = await open_zookeeper_store(environment, config)
    try:
        broker_id = config.reserved_broker_max_id + await _next_in_sequence(store)
    finally:
        await store.close()
    logger.info("generated the broker id broker.id=%d", broker_id)
    return config.with_generated_id(broker_id)


async def _next_in_sequence(store: MetadataStore) -> int:
    """Return a number that no other broker gets: the version of a node whose data is irrelevant."""
    await store.ensure_path(znodes.BROKER_SEQUENCE)
    return (await store.set(znodes.BROKER_SEQUENCE, b"")).version


def _find_ids(fs: FileSystem, directories: Sequence[str]) -> dict[int, str]:
    """Return the broker ids in the log directories, each with the first directory that has it."""
    found: dict[int, str] = {}
    for directory, meta in read_metas(fs, directories):
        if meta.node_id is not None:
            found.setdefault(meta.node_id, directory)
    return found
