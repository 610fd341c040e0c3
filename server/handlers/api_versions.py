"""ApiVersions: what this broker serves.

Versions 0-4. From 3 on the client names itself, and a name or version that is not
`[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?` is INVALID_REQUEST (KIP-511). A request in an unknown version is answered
in version 0 with UNSUPPORTED_VERSION and the range of ApiVersions itself. Features are listed when they are whole
(KIP-584); before version 4 not those that may be at level 0, which older clients cannot read (KAFKA-17492).
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
from odradek.replication.controller.features import SUPPORTED
from odradek.server.apis import APIS, Api, advertised_first_version

if TYPE_CHECKING:
    from odradek.replication.controller.features import Features
    from odradek.server.request import RequestContext

LEVEL_0_SINCE: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsServices(Protocol):
    """The parts of a broker that ApiVersions needs."""

    features: "Features"


def api_versions(
    services: ApiVersionsServices, context: "RequestContext", request: ApiVersionsRequest | None
) -> ApiVersionsResponse:
    """The table of APIs; `request` is None when its version is not known."""
    if request is None:
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_row(APIS[API_VERSIONS_KEY])]
        )
    if context.api_version >= 3:
        software = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(part) for part in software):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        context.client_software = software
    features = services.features
    return ApiVersionsResponse(
        api_keys=[_row(api) for api in APIS.values()],
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
    """An error and no APIs."""
    return ApiVersionsResponse(error_code=error.code)


def _row(api: Api) -> ApiVersionsResponseApiVersion:
    return ApiVersionsResponseApiVersion(
        api_key=api.key, min_version=advertised_first_version(api), max_version=api.last_version
    )
