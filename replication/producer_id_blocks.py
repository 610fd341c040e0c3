"""Blocks of producer ids, reserved in the metadata store so that no two brokers give out the same id.

Kafka keeps the last block under `/latest_producer_id_block`, as JSON with its ends and the broker that has it.
"""

import json
from typing import Final

from odradek.replication.metadata_store import BadVersionError, MetadataStore, NodeExistsError, NoNodeError

BLOCK_SIZE: Final = 1000
"""As in Apache Kafka; what is left of a block at a restart is never used."""

PATH: Final = "/latest_producer_id_block"


async def allocate_block(store: MetadataStore, broker_id: int) -> range:
    """The next block, durably reserved. Raises MetadataStoreError."""
    while True:
        try:
            node = await store.get(PATH)
        except NoNodeError:
            block = range(BLOCK_SIZE)
            try:
                await store.create(PATH, _encode(block, broker_id))
            except NodeExistsError:
                continue
            return block
        start = int(json.loads(node.data or b"{}").get("block_end", -1)) + 1
        block = range(start, start + BLOCK_SIZE)
        try:
            await store.set(PATH, _encode(block, broker_id), node.stat.version)
        except BadVersionError:
            continue
        return block


def _encode(block: range, broker_id: int) -> bytes:
    value = {"version": 1, "broker": broker_id, "block_start": str(block[0]), "block_end": str(block[-1])}
    return json.dumps(value).encode()
