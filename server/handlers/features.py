"""UpdateFeatures 0-2: changes finalised feature levels (KIP-584, KIP-1022).

All updates or none. From version 1 on a request says of what kind a change is, and whether it is a mere trial; what
version 0 says of downgrades goes unheard, as in a KRaft cluster. From version 2 on the answer has no row for each
feature.
"""

from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdateKey,
    UpdateFeaturesResponse,
    UpdateFeaturesResponseUpdatableFeatureResult,
)
from odradek.replication.controller.features import FeatureUpdate
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.controller import Controller
    from odradek.replication.controller.features import Features
    from odradek.server.request import RequestContext

ROWS_UNTIL: Final = 1


class FeatureServices(Protocol):
    """The parts of a broker that UpdateFeatures needs."""

    controller: "Controller"
    features: "Features"


def update_features(
    services: FeatureServices, context: "RequestContext", request: UpdateFeaturesRequest
) -> "Deferred[UpdateFeaturesResponse]":
    """Change the levels, or only say whether they could be changed."""
    version = context.api_version
    updates = [_update(asked) for asked in request.feature_updates]
    changed = services.features.update(services.controller, updates, validate_only=request.validate_only)
    return carry_through(changed).addCallback(lambda _: _done(request, version))


def _update(asked: UpdateFeaturesRequestFeatureUpdateKey) -> FeatureUpdate:
    return FeatureUpdate(asked.feature, asked.max_version_level, asked.upgrade_type)


def _done(request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
    rows = []
    if version <= ROWS_UNTIL:
        rows = [
            UpdateFeaturesResponseUpdatableFeatureResult(feature=asked.feature, error_message=None)
            for asked in request.feature_updates
        ]
    return UpdateFeaturesResponse(error_message=None, results=rows)


def update_features_error(
    request: UpdateFeaturesRequest, version: int, error: KafkaError
) -> UpdateFeaturesResponse:
    """The error for the request as a whole."""
    message = error.message
    if message is not None:
        message = f"The update failed for all features since the following feature had an error: {message}"
    return UpdateFeaturesResponse(error_code=error.code, error_message=message)
