"""APIs that need operations on the cluster."""

from typing import TYPE_CHECKING

from odradek.server.authorization.guarding import GuardServices, Proceed, Q, R
from odradek.server.security.authorization.operations import Operation, ResourceType
from odradek.server.security.authorization.rights import Rights, make_authorization_error

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext


def only_cluster(
    rights: Rights, services: GuardServices, context: "RequestContext", request: Q, proceed: Proceed[Q, R]
) -> "Reply[R]":
    """Check the operation on the cluster that the API needs."""
    rights.check_cluster()
    return proceed(request)


def undeclared(
    rights: Rights, services: GuardServices, context: "RequestContext", request: Q, proceed: Proceed[Q, R]
) -> "Reply[R]":
    """Refuse a request for which the table of APIs declares no operation."""
    raise make_authorization_error(ResourceType.CLUSTER)


def write_txn_markers(
    rights: Rights, services: GuardServices, context: "RequestContext", request: Q, proceed: Proceed[Q, R]
) -> "Reply[R]":
    """Check for ALTER, which administrators have (KIP-664), then for CLUSTER_ACTION, which brokers have."""
    if not rights.allows_cluster(Operation.ALTER, audits_denial=False):
        rights.check_cluster(Operation.CLUSTER_ACTION)
    return proceed(request)
