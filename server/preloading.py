"""Modules that are imported when a client first needs them, imported early: an import takes a file descriptor."""

import logging
from collections.abc import Generator
from importlib import import_module
from typing import Final

from odradek.protocol.messages import request_class, response_class
from odradek.server.apis import APIS

logger = logging.getLogger(__name__)

MODULES: Final = (
    "cramjam",
    "zstandard",
    "uuid",
    "odradek.coordinator.settings",
    "odradek.coordinator.transaction_settings",
    "odradek.log.compaction",
    "odradek.log.compaction_process",
    "odradek.log.long_validation",
    "odradek.replication.config_admin",
    "odradek.replication.config_description",
    "odradek.replication.topic_admin",
    "odradek.server.group_coordinators",
    "odradek.server.image_cache",
    "odradek.server.marker_sender",
    "odradek.server.produce_memo",
    "odradek.server.transaction_coordinators",
    "odradek.server.transaction_verification",
)
"""Modules that are imported within functions, besides the handlers and the messages."""


def preload() -> Generator[None, None, None]:
    """Import what is not imported yet, a module in each step. What fails is tried again by the client that needs it."""
    handlers = {f"odradek.server.handlers.{api.handler.partition(':')[0]}" for api in APIS.values()}
    for name in (*MODULES, *sorted(handlers)):
        try:
            import_module(name)
        except (OSError, ImportError) as error:
            logger.debug("not preloaded module=%s error=%s", name, error)
        yield
    for key in APIS:
        try:
            request_class(key)
            response_class(key)
        except (OSError, ImportError) as error:
            logger.debug("not preloaded messages of api=%s error=%s", key, error)
        yield
