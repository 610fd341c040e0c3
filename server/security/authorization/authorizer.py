"""The interface of an authorizer. Source: Kafka's org.apache.kafka.server.authorizer.Authorizer (KIP-504)."""

from typing import Protocol

from odradek.server.security.authorization.operations import Operation, ResourceType
from odradek.server.security.principal import Principal


class AuthorizedClient(Protocol):
    """The client of a request, as an authorizer needs it (`server.request.RequestContext`).

    client_host: the address as Kafka prints it, a slash and the numeric address
    """

    principal: Principal
    client_host: str


class Authorizer(Protocol):
    """Decides what clients may do.

    version: changes whenever a decision may have changed, so that decisions can be cached
    """

    version: int

    def allows(
        self,
        client: AuthorizedClient,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        audits_denial: bool = True,
    ) -> bool:
        """Return whether the client may perform an operation on a resource.

        audits_denial: a denial is an attempt beyond the client's rights, and is logged as such. False if the operation
        only selects what a response contains.
        """

    def allows_any(self, client: AuthorizedClient, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the client may perform an operation on at least one resource of a type (KIP-679)."""
