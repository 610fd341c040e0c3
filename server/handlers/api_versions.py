"""ApiVersions 0-4: the APIs, versions and features of this broker.

From version 3 on the request contains name and version of the client's software; either of them that does not match
`[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?` is INVALID_REQUEST (KIP-511). The response to an unknown version is one of
version 0 with UNSUPPORTED_VERSION and the versions of ApiVersions itself. Features: KIP-584. Before version 4 the
response omits features whose lowest level is 0, which older clients cannot decode (KAFKA-17492).

Without a subscription of client metrics the response omits the APIs of KIP-714, as Apache Kafka does without a
receiver: each client would ask for its subscription, and librdkafka prints a line about its new client instance id.
"""

import re
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.headers import API_VERSIONS_KEY
from odradek.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    ApiVersionsResponseFinalizedFeatureKey,
    ApiVersionsResponseSupportedFeatureKey,
)
from odradek.replication.controller.admin.features import SUPPORTED
from odradek.server.apis import APIS, TELEMETRY_KEYS, Api, advertised_first_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from odradek.replication.controller.admin.features import Features
    from odradek.server.request import RequestContext

LEVEL_0_SINCE: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsServices(Protocol):
    """The parts of a broker that ApiVersions needs."""

    apis: "Mapping[int, Api]"
    features: "Features"

    @property
    def wants_client_metrics(self) -> bool: ...


def api_versions(
    services: ApiVersionsServices, context: "RequestContext", request: ApiVersionsRequest | None
) -> ApiVersionsResponse:
    """Return the APIs and features of this broker. `request` is None if its version is unknown.

    Raises KafkaError INVALID_REQUEST.
    """
    if request is None:
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_make_row(APIS[API_VERSIONS_KEY])]
        )
    if context.api_version >= 3:
        software = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(part) for part in software):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        context.client_software = software
    features = services.features
    return ApiVersionsResponse(
        api_keys=[
            _make_row(api)
            for api in services.apis.values()
            if api.key not in TELEMETRY_KEYS or services.wants_client_metrics
        ],
        supported_features=[
            ApiVersionsResponseSupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in SUPPORTED.items()
            if lowest > 0 or context.api_version >= LEVEL_0_SINCE
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            ApiVersionsResponseFinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.levels.items()
        ],
    )


def api_versions_error(request: ApiVersionsRequest | None, version: int, error: KafkaError) -> ApiVersionsResponse:
    """Return `error` and no APIs."""
    return ApiVersionsResponse(error_code=error.code)


def _make_row(api: Api) -> ApiVersionsResponseApiVersion:
    return ApiVersionsResponseApiVersion(
        api_key=api.key, min_version=advertised_first_version(api), max_version=api.last_version
    )
