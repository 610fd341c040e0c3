"""The rights of the client of one request. Source: Kafka's AuthHelper."""

from collections.abc import Callable, Collection, Generator, Iterable
from typing import Final, TypeVar

from odradek.protocol.errors import KafkaError
from odradek.server.security.authorization.authorizer import AuthorizedClient, Authorizer
from odradek.server.security.authorization.needs import Need
from odradek.server.security.authorization.operations import (
    AUTHORIZATION_ERRORS,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
)

T = TypeVar("T")

DECISIONS_PER_STEP: Final = 32
"""Decisions of an authorizer in one step. Each takes 1 to 10 us."""

MAX_DECISIONS: Final = 20_000
"""Decisions held for one request: as many as the handlers need that do not decide in steps. To free them takes 3 ms."""

_MESSAGES: Final = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
    ResourceType.DELEGATION_TOKEN: "Delegation Token authorization failed.",
}
"""Kafka's texts, which clients show."""


def make_authorization_error(resource_type: ResourceType) -> KafkaError:
    """Return the error of a client without the right to a resource of a type."""
    return KafkaError(AUTHORIZATION_ERRORS[resource_type], _MESSAGES[resource_type])


class Rights:
    """The operations that the client of one request may perform on the resources that the request names.

    An operation that is not given is the first that the API needs on the type of resource. Each decision is made once,
    so that a denial is audited once, unless there are more than MAX_DECISIONS.

    authorizer: makes the decisions
    needs: the operations that the API declares; no other operation may be asked for
    """

    __slots__ = ("_client", "_decisions", "_needs", "authorizer")

    def __init__(self, authorizer: Authorizer, client: AuthorizedClient, needs: tuple[Need, ...]) -> None:
        self.authorizer = authorizer
        self._client = client
        self._needs = needs
        self._decisions: dict[tuple[ResourceType, Operation, str], bool] = {}

    @property
    def key(self) -> tuple[object, ...]:
        """A key of decisions that are cached: requests with the same key have the same rights."""
        return self.authorizer.version, self._client.principal, self._client.client_host

    def allows(
        self,
        resource_type: ResourceType,
        name: str,
        operation: Operation | None = None,
        *,
        audits_denial: bool = True,
    ) -> bool:
        """Return whether the client may perform an operation on a resource."""
        if operation is None:
            operation = self._find_operation(resource_type)
        key = resource_type, operation, name
        decision = self._decisions.get(key)
        if decision is None:
            assert Need(resource_type, operation) in self._needs, "the table of APIs does not declare this operation"
            decision = self.authorizer.allows(self._client, operation, resource_type, name, audits_denial=audits_denial)
            if len(self._decisions) < MAX_DECISIONS:
                self._decisions[key] = decision
        return decision

    def forget(self) -> None:
        """Free the decisions and their names, because the request is complete."""
        if self._decisions:
            self._decisions = {}

    def allows_cluster(self, operation: Operation | None = None, *, audits_denial: bool = True) -> bool:
        """Return whether the client may perform an operation on the cluster."""
        return self.allows(ResourceType.CLUSTER, CLUSTER_NAME, operation, audits_denial=audits_denial)

    def allows_any(self, resource_type: ResourceType) -> bool:
        """Return whether the client may perform the operation on at least one resource of a type (KIP-679)."""
        return self.authorizer.allows_any(self._client, self._find_operation(resource_type), resource_type)

    def check(self, resource_type: ResourceType, name: str) -> None:
        """Raise KafkaError if the client may not perform the operation on a resource."""
        if not self.allows(resource_type, name):
            raise make_authorization_error(resource_type)

    def check_cluster(self, operation: Operation | None = None) -> None:
        """Raise KafkaError CLUSTER_AUTHORIZATION_FAILED if the client may not perform an operation on the cluster."""
        if not self.allows_cluster(operation):
            raise make_authorization_error(ResourceType.CLUSTER)

    def decide(self, resource_type: ResourceType, names: Iterable[str]) -> Generator[None, None, None]:
        """Make the decisions on many resources in steps, so that `allows` returns them at once."""
        for number, name in enumerate(names, 1):
            self.allows(resource_type, name)
            if number % DECISIONS_PER_STEP == 0:
                yield

    def divide(
        self,
        resource_type: ResourceType,
        rows: Collection[T],
        find_name: Callable[[T], str | None],
        operation: Operation | None = None,
        *,
        audits_denial: bool = True,
    ) -> Generator[None, None, tuple[list[T], list[T]]]:
        """Return the rows on whose resources the client may perform the operation, and the others, in steps.

        find_name: returns the name of a row's resource; None for a row that needs no right
        """
        allowed: list[T] = []
        refused: list[T] = []
        for number, row in enumerate(rows, 1):
            name = find_name(row)
            is_allowed = name is None or self.allows(resource_type, name, operation, audits_denial=audits_denial)
            (allowed if is_allowed else refused).append(row)
            if number % DECISIONS_PER_STEP == 0:
                yield
        return allowed, refused

    def list_operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized operations on a resource as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.authorizer.allows(self._client, operation, resource_type, name, audits_denial=False)
        )

    def _find_operation(self, resource_type: ResourceType) -> Operation:
        for need in self._needs:
            if need.resource_type is resource_type:
                return need.operation
        raise AssertionError(f"the table of APIs declares no operation on a {resource_type.name}")
