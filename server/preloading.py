"""Preloading of modules and codecs that the first requests of clients need.

An import takes a file descriptor, and later there may be none; and imports and compilation of codecs for the first
request of each API would delay all clients by up to 25 ms.
"""

import logging
from collections.abc import Generator, Iterable, Mapping
from importlib import import_module
from typing import Final

from odradek.protocol.codec import decoder, small_encoder, step_decoder, step_encoder
from odradek.protocol.messages import request_class, response_class
from odradek.server.apis import APIS, Api

logger = logging.getLogger(__name__)

MODULES: Final = (
    "cramjam",
    "ctypes",
    "zstandard",
    "uuid",
    "odradek.coordinator.groups.settings",
    "odradek.coordinator.transactions.settings",
    "odradek.log.compaction.rules",
    "odradek.log.compaction.process",
    "odradek.log.validation.long_batch",
    "odradek.replication.controller.admin.configs",
    "odradek.replication.controller.admin.config_description",
    "odradek.replication.controller.admin.elections",
    "odradek.replication.controller.admin.reassignments",
    "odradek.replication.controller.admin.topics",
    "odradek.server.coordinators.groups",
    "odradek.server.image_cache",
    "odradek.server.coordinators.marker_sender",
    "odradek.server.network.produce_fast_path",
    "odradek.server.network.throttled_connection",
    "odradek.server.quotas.alterations",
    "odradek.server.quotas.client_charges",
    "odradek.server.quotas.client_quotas",
    "odradek.server.quotas.ip_rates",
    "odradek.server.security.sasl.scram_users",
    "odradek.server.telemetry.client_telemetry",
    "odradek.server.coordinators.transactions",
    "odradek.server.coordinators.transaction_verification",
)
"""Modules that are imported within functions, other than handlers and messages."""


def preload(apis: Mapping[int, Api] = APIS, guards: Iterable[str] = ()) -> Generator[None, None, None]:
    """Import modules and compile codecs, one in each step. The first request that needs one retries what has failed.

    Codecs are compiled for the latest version of each API, which most clients use.

    guards: the names of the modules that authorize requests
    """
    handlers = {f"odradek.server.handlers.{api.handler.partition(':')[0]}" for api in apis.values()}
    for name in (*MODULES, *sorted(handlers), *guards):
        try:
            import_module(name)
        except (OSError, ImportError) as error:
            logger.debug("not preloaded module=%s error=%s", name, error)
        yield
    for key, api in apis.items():
        try:
            decoder(request_class(key), api.last_version)
            small_encoder(response_class(key), api.last_version)
        except (OSError, ImportError) as error:
            logger.debug("not preloaded messages of api=%s error=%s", key, error)
        yield
    if any(api.in_cluster_only for api in apis.values()):
        try:
            yield from _preload_between_brokers()
        except (OSError, ImportError) as error:
            logger.debug("not preloaded messages between brokers error=%s", error)


def _preload_between_brokers() -> Generator[None, None, None]:
    """Compile the codecs of requests about all partitions of a new topic: each takes 1 to 2 ms, several in a row."""
    from odradek.protocol.messages.fetch import FetchRequest
    from odradek.protocol.messages.leader_and_isr import LeaderAndIsrRequest
    from odradek.protocol.messages.update_metadata import UpdateMetadataRequest
    from odradek.replication.controller.propagation.requests import LEADER_AND_ISR_VERSION, UPDATE_METADATA_VERSION
    from odradek.replication.following.fetcher import FETCH_VERSION

    yield
    requests = (
        (LeaderAndIsrRequest, LEADER_AND_ISR_VERSION),
        (UpdateMetadataRequest, UPDATE_METADATA_VERSION),
        (FetchRequest, FETCH_VERSION),
    )
    for request, version in requests:
        response = response_class(request.api_key)
        for compile_encoder in (small_encoder, step_encoder):
            compile_encoder(request, version)
            yield
            compile_encoder(response, version)
            yield
        for compile_decoder in (decoder, step_decoder):
            compile_decoder(request, version)
            yield
            compile_decoder(response, version)
            yield


def preload_at_once(apis: Mapping[int, Api], guards: Iterable[str]) -> None:
    """Run all steps of `preload`, for a thread."""
    for _ in preload(apis, guards):
        pass
