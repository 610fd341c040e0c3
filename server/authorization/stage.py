"""The authorization stage of the request pipeline, and the guard of each API."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.internet.defer import Deferred

from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights

if TYPE_CHECKING:
    from odradek.protocol.schema import Message
    from odradek.server.apis import Api
    from odradek.server.authorization.guarding import Guard
    from odradek.server.request import RequestContext
    from odradek.server.security.authorization.authorizer import Authorizer

T = TypeVar("T")

_PACKAGE: Final = "odradek.server.authorization"
_CLUSTER_GUARD: Final = "cluster:only_cluster"
_UNDECLARED_GUARD: Final = "cluster:undeclared"

HANDLER: Final = "handler"
"""Instead of a guard, if the handler itself checks the rights."""

GUARDS: Final[Mapping[str, str]] = {
    "Produce": "produce:produce",
    "Fetch": HANDLER,
    "ListOffsets": "records:list_offsets",
    "Metadata": HANDLER,
    "OffsetCommit": "offsets:offset_commit",
    "OffsetFetch": "offsets:offset_fetch",
    "FindCoordinator": "coordinators:find_coordinator",
    "JoinGroup": "groups:join_group",
    "Heartbeat": "groups:one_group",
    "LeaveGroup": "groups:one_group",
    "SyncGroup": "groups:sync_group",
    "DescribeGroups": "groups:describe_groups",
    "ListGroups": "groups:list_groups",
    "CreateTopics": "topics:create_topics",
    "DeleteTopics": "topics:delete_topics",
    "DeleteRecords": "records:delete_records",
    "InitProducerId": "producers:init_producer_id",
    "OffsetForLeaderEpoch": "records:offset_for_leader_epoch",
    "AddPartitionsToTxn": "transactions:add_partitions_to_txn",
    "AddOffsetsToTxn": "transactions:add_offsets_to_txn",
    "EndTxn": "transactions:end_txn",
    "WriteTxnMarkers": "cluster:write_txn_markers",
    "TxnOffsetCommit": "transaction_offsets:txn_offset_commit",
    "DescribeConfigs": "configs:describe_configs",
    "AlterConfigs": HANDLER,
    "CreateDelegationToken": HANDLER,
    "CreatePartitions": "topics:create_partitions",
    "DescribeDelegationToken": HANDLER,
    "DeleteGroups": "groups:delete_groups",
    "IncrementalAlterConfigs": HANDLER,
    "OffsetDelete": "offsets:offset_delete",
    "DescribeCluster": HANDLER,
    "DescribeProducers": "producers:describe_producers",
    "DescribeTransactions": "transactions:describe_transactions",
    "ListTransactions": "transactions:list_transactions",
    "DescribeTopicPartitions": HANDLER,
}
"""By API, `module:function` under `server/authorization`. APIs that need only an operation on the cluster have none."""


def find_guard(api: "Api") -> "Guard | None":
    """Return the guard of an API; None if its handler checks the rights."""
    name = GUARDS.get(api.name)
    if name == HANDLER:
        return None
    if name is None:
        is_declared = api.needs is not None and all(need.resource_type is ResourceType.CLUSTER for need in api.needs)
        name = _CLUSTER_GUARD if is_declared else _UNDECLARED_GUARD
    module, _, function = name.partition(":")
    guard: Guard = getattr(import_module(f"{_PACKAGE}.{module}"), function)
    return guard


def list_guard_modules(apis: "Iterable[Api]") -> list[str]:
    """Return the names of the modules with the guards of APIs."""
    names = {GUARDS.get(api.name, _CLUSTER_GUARD) for api in apis if api.needs} - {HANDLER}
    return sorted({f"{_PACKAGE}.{name.partition(':')[0]}" for name in names})


class AuthorizationStage:
    """Wraps the handlers of all APIs that need rights (`server.stages.Stage`)."""

    runs_on_fast_path: Final = True

    def __init__(self, authorizer: "Authorizer") -> None:
        self._authorizer = authorizer

    def __call__(self, api: "Api", version: int, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the handler with its guard; the same handler if every client may use the API."""
        needs = api.needs
        if needs is not None and not needs:
            return handler
        authorizer, guard, declared = self._authorizer, find_guard(api), needs or ()

        def guarded(services: Any, context: "RequestContext", request: "Message") -> Any:
            rights = context.rights = Rights(authorizer, context, declared)
            try:
                if guard is None:
                    reply = handler(services, context, request)
                else:
                    reply = guard(rights, services, context, request, lambda rest: handler(services, context, rest))
            except BaseException:
                rights.forget()
                raise
            if isinstance(reply, Deferred):
                return reply.addBoth(_forget, rights)
            rights.forget()
            return reply

        return guarded


def _forget(outcome: T, rights: Rights) -> T:
    """Return the outcome of a request that is complete."""
    rights.forget()
    return outcome
