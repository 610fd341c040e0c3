"""UpdateFeatures 0-2: changes finalized feature levels (KIP-584, KIP-1022).

All updates succeed or none. From version 1 on a request has the type of each change (upgrade, safe or unsafe downgrade)
and `validate_only`. The field of version 0 that allows downgrades is ignored, as in a KRaft cluster. From version 2 on
the response has no rows for single features.
"""

from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdateKey,
    UpdateFeaturesResponse,
    UpdateFeaturesResponseUpdatableFeatureResult,
)
from odradek.replication.controller.admin.features import FeatureUpdate
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.admin.features import Features
    from odradek.replication.controller.controller import Controller
    from odradek.server.request import RequestContext

LAST_VERSION_WITH_ROWS: Final = 1


class FeatureServices(Protocol):
    """The parts of a broker that UpdateFeatures needs."""

    controller: "Controller"
    features: "Features"


def update_features(
    services: FeatureServices, context: "RequestContext", request: UpdateFeaturesRequest
) -> "Deferred[UpdateFeaturesResponse]":
    """Change the levels of features, or only validate the change."""
    version = context.api_version
    updates = [_make_update(requested) for requested in request.feature_updates]
    changed = services.features.update(services.controller, updates, validate_only=request.validate_only)
    return carry_through(changed).addCallback(lambda _: _make_response(request, version))


def _make_update(requested: UpdateFeaturesRequestFeatureUpdateKey) -> FeatureUpdate:
    return FeatureUpdate(requested.feature, requested.max_version_level, requested.upgrade_type)


def _make_response(request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
    rows = []
    if version <= LAST_VERSION_WITH_ROWS:
        rows = [
            UpdateFeaturesResponseUpdatableFeatureResult(feature=requested.feature, error_message=None)
            for requested in request.feature_updates
        ]
    return UpdateFeaturesResponse(error_message=None, results=rows)


def update_features_error(
    request: UpdateFeaturesRequest, version: int, error: KafkaError
) -> UpdateFeaturesResponse:
    """Return `error` for the whole request."""
    message = error.message
    if message is not None:
        message = f"The update failed for all features since the following feature had an error: {message}"
    return UpdateFeaturesResponse(error_code=error.code, error_message=message)
