"""A random secret that all brokers of a cluster share, and that outlives their restarts: `scram.UnknownUsers` needs it.

Who can read it can read the credentials of users as well: it is in the same store, with the same access.
"""

import logging
from collections.abc import Callable
from typing import Final

from odradek.replication.metadata.store import MetadataStore, NodeExistsError

logger = logging.getLogger(__name__)

PATH: Final = "/odradek_scram_secret"
SECRET_BYTES: Final = 32


async def load_secret(store: MetadataStore, random_bytes: Callable[[int], bytes]) -> bytes:
    """Return the secret, which the first broker creates. Raises MetadataStoreError."""
    if await store.exists(PATH) is None:
        try:
            await store.create(PATH, random_bytes(SECRET_BYTES))
        except NodeExistsError:
            logger.debug("another broker has created the secret of unknown users")
    secret = (await store.get(PATH)).data or b""
    if len(secret) != SECRET_BYTES:
        # What was written instead may be known. Another secret at each start shows unknown users only to who compares.
        logger.error("the node %s is damaged: attempts to log in may show which users exist; delete it", PATH)
        return random_bytes(SECRET_BYTES)
    return secret
