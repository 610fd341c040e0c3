"""UpdateFeatures 0-2: finalised feature levels (KIP-584).

No feature is served whole yet, so there is none whose level could be changed: every update is refused, all or nothing,
with INVALID_UPDATE_VERSION. From version 2 on the answer has no row for each feature (KIP-1022).
"""

from typing import TYPE_CHECKING, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from odradek.server.request import RequestContext
    from odradek.server.services import Services

_UPGRADE_TYPES: Final = (1, 2, 3)


def update_features(
    services: "Services", context: "RequestContext", request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Refuses the first update; a request without updates has nothing to refuse."""
    for update in request.feature_updates:
        why = "this broker does not support the feature"
        if update.upgrade_type not in _UPGRADE_TYPES:
            why = "the upgrade type is not known"
        elif update.max_version_level < 0:
            why = "a feature level cannot be less than 0"
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {update.max_version_level} for feature {update.feature}: {why}.",
        )
    return UpdateFeaturesResponse()


def update_features_error(
    request: UpdateFeaturesRequest, version: int, error: KafkaError
) -> UpdateFeaturesResponse:
    """The error for the request as a whole."""
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
