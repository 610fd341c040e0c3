"""Blocks of producer ids, reserved in the metadata store, so that two brokers never allocate the same id.

As in Kafka, `/latest_producer_id_block` contains the last block as JSON, with its ends and its broker.
"""

import json
from typing import Final

from odradek.replication.metadata.store import BadVersionError, MetadataStore, NodeExistsError, NoNodeError

BLOCK_SIZE: Final = 1000
"""As in Apache Kafka. The remaining ids of a block are not used after a restart."""

PATH: Final = "/latest_producer_id_block"


async def allocate_block(store: MetadataStore, broker_id: int, least_id: int = 0) -> range:
    """Reserve the next block durably and return it. It begins at `least_id` or above. Raises MetadataStoreError."""
    return await _reserve(store, broker_id, least_id, BLOCK_SIZE)


async def begin_blocks_at(store: MetadataStore, broker_id: int, least_id: int) -> None:
    """Make later blocks begin at `least_id` or above: reserve an empty block there. Raises MetadataStoreError."""
    await _reserve(store, broker_id, least_id, 0)


async def next_block_start(store: MetadataStore) -> int | None:
    """Return the first id of the next block; None if no block was ever reserved. Raises MetadataStoreError."""
    try:
        return _end((await store.get(PATH)).data)
    except NoNodeError:
        return None


async def _reserve(store: MetadataStore, broker_id: int, least_id: int, size: int) -> range:
    while True:
        try:
            node = await store.get(PATH)
        except NoNodeError:
            block = range(least_id, least_id + size)
            try:
                await store.create(PATH, _encode(block, broker_id))
            except NodeExistsError:
                continue
            return block
        start = max(_end(node.data), least_id)
        block = range(start, start + size)
        try:
            await store.set(PATH, _encode(block, broker_id), node.stat.version)
        except BadVersionError:
            continue
        return block


def _end(data: bytes | None) -> int:
    return int(json.loads(data or b"{}").get("block_end", -1)) + 1


def _encode(block: range, broker_id: int) -> bytes:
    """Encode a block with inclusive ends; the end of an empty block is below its start."""
    value = {"version": 1, "broker": broker_id, "block_start": str(block.start), "block_end": str(block.stop - 1)}
    return json.dumps(value).encode()
