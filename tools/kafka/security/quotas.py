"""Quotas of clients."""

from collections.abc import Mapping, Sequence
from typing import Final

from odradek.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasRequestOpData,
    AlterClientQuotasResponse,
)
from odradek.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponentData,
    DescribeClientQuotasResponse,
)
from odradek.tools.kafka.cluster import Cluster, RequestError, check, make_error
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
"""Quotas of users and client ids."""
IP_QUOTAS: Final = ("connection_creation_rate",)

_EXACT: Final = 0
_DEFAULT: Final = 1

Entity = tuple[tuple[str, str | None], ...]
"""Types with names; the name None is the default of all that have no quota of their own."""


def fetch_quotas(cluster: Cluster, entity: Entity = (), *, is_strict: bool = False) -> dict[Entity, dict[str, float]]:
    """Return the quotas of the entities that contain `entity`, or with `is_strict` only its own."""
    components = [
        DescribeClientQuotasRequestComponentData(
            entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
        )
        for kind, name in entity
    ]
    response = cluster.ask_controller(
        DescribeClientQuotasRequest(components=components, strict=is_strict), DescribeClientQuotasResponse
    )
    check(response.error_code, response.error_message)
    found: dict[Entity, dict[str, float]] = {}
    for entry in response.entries or []:
        names = {one.entity_type: one.entity_name for one in entry.entity}
        key = tuple((kind, names[kind]) for kind in ENTITY_TYPES if kind in names)
        found[key] = {one.key: one.value for one in sorted(entry.values, key=lambda one: one.key)}
    return found


def alter_quotas(
    cluster: Cluster, entity: Entity, changed: Mapping[str, float], deleted: Sequence[str], *, is_dry_run: bool
) -> None:
    """Set and remove quotas of an entity. Raises RequestError, for an unknown quota with the nearest names."""
    operations = [AlterClientQuotasRequestOpData(key=key, value=value, remove=False) for key, value in changed.items()]
    operations += [AlterClientQuotasRequestOpData(key=key, value=0.0, remove=True) for key in deleted]
    entry = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=operations,
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=is_dry_run)
    for one in cluster.ask_controller(request, AlterClientQuotasResponse).entries:
        if one.error_code:
            raise _explain(make_error(one.error_code, one.error_message), entity, [*changed, *deleted])


def _explain(error: RequestError, entity: Entity, names: Sequence[str]) -> RequestError:
    """Return the error of a change, with the quotas that an unknown one may stand for."""
    known = IP_QUOTAS if any(kind == IP for kind, _ in entity) else QUOTAS
    for name in names:
        if name not in known:
            similar = find_similar(name, known)
            hint = format_suggestion(similar) or f"; there are {', '.join(known)}"
            return RequestError(error.code, f"{error}{hint}", similar or known)
    return error
