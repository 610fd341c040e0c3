"""DescribeClientQuotas 0-1, AlterClientQuotas 0-1 (KIP-546).

As in Kafka's ZooKeeper mode, any broker serves them.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from odradek.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    DescribeClientQuotasResponseValueData,
)
from odradek.protocol.schema import rows
from odradek.server.quotas.filters import QuotaFilter, read_quotas
from odradek.server.work.slices import ROWS_PER_STEP
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.metadata.entity_configs import EntityConfigs
    from odradek.server.quotas.alterations import QuotaAdmin
    from odradek.server.request import RequestContext
    from odradek.server.work.slices import Slices


class ClientQuotaServices(Protocol):
    """The parts of a broker that requests about quotas need."""

    entity_configs: "EntityConfigs"
    slices: "Slices"

    @property
    def quota_admin(self) -> "QuotaAdmin": ...


def describe_client_quotas(
    services: ClientQuotaServices, context: "RequestContext", request: DescribeClientQuotasRequest
) -> "Deferred[DescribeClientQuotasResponse]":
    """Return the quotas of the entities that match the filter. Raises KafkaError for an invalid filter."""
    return services.slices.run(_describe_in_steps(services.entity_configs, QuotaFilter(request)))


def _describe_in_steps(
    entities: "EntityConfigs", selection: QuotaFilter
) -> Generator[None, None, DescribeClientQuotasResponse]:
    entries = []
    for number, (path, configs) in enumerate(list(entities.configs.items())):
        if number % ROWS_PER_STEP == 0:
            yield
        found = read_quotas(path, configs)
        if found is None:
            continue
        entity, quotas = found
        if selection.selects(entity):
            entries.append(
                DescribeClientQuotasResponseEntryData(
                    entity=[
                        DescribeClientQuotasResponseEntityData(entity_type=kind, entity_name=name or None)
                        for kind, name in entity.parts
                    ],
                    values=[
                        DescribeClientQuotasResponseValueData(key=key, value=value) for key, value in quotas.items()
                    ],
                )
            )
    return DescribeClientQuotasResponse(error_message="", entries=entries)


def describe_client_quotas_error(
    request: DescribeClientQuotasRequest, version: int, error: KafkaError
) -> DescribeClientQuotasResponse:
    """Return `error` and no entities."""
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)


def alter_client_quotas(
    services: ClientQuotaServices, context: "RequestContext", request: AlterClientQuotasRequest
) -> "Deferred[AlterClientQuotasResponse]":
    """Set or remove quotas. Each entity has its own error."""
    return carry_through(services.quota_admin.alter(request))


def alter_client_quotas_error(
    request: AlterClientQuotasRequest, version: int, error: KafkaError
) -> AlterClientQuotasResponse:
    """Return `error` for every entity."""
    return AlterClientQuotasResponse(
        entries=rows(
            lambda entry: AlterClientQuotasResponseEntryData(
                error_code=error.code,
                error_message=error.message,
                entity=[
                    AlterClientQuotasResponseEntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            ),
            request.entries,
        )
    )
