"""Filters of DescribeClientQuotas (KIP-546)."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponentData,
)
from odradek.replication.metadata.image import Configs
from odradek.server.quotas.entities import CLIENT_ID, DEFAULT, IP, USER, QuotaEntity, parse_path
from odradek.server.quotas.keys import CLIENT_KEYS, IP_KEYS

_TYPES: Final = (USER, CLIENT_ID, IP)

Matches = Callable[[str], bool]


class MatchType(IntEnum):
    """Types of matches; the numbers are the protocol's."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class QuotaFilter:
    """The filter of a request. Raises KafkaError INVALID_REQUEST, UNSUPPORTED_VERSION for an unknown type."""

    def __init__(self, request: DescribeClientQuotasRequest) -> None:
        self._matches: dict[str, Matches] = {}
        self._is_strict = request.strict
        for component in request.components:
            kind = component.entity_type
            if not kind:
                raise _invalid("Invalid empty entity type.")
            if kind in self._matches:
                raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
            if kind not in _TYPES:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
            self._matches[kind] = _make_match(component)
        if IP in self._matches and len(self._matches) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def selects(self, entity: QuotaEntity) -> bool:
        """Return whether an entity matches all components; with `strict` it must have no other parts."""
        parts = dict(entity.parts)
        if self._is_strict and len(parts) != len(self._matches):
            return False
        return all(kind in parts and matches(parts[kind]) for kind, matches in self._matches.items())


def read_quotas(path: str, configs: Configs) -> tuple[QuotaEntity, Mapping[str, float]] | None:
    """Return an entity and its quotas; None if it has none."""
    entity = parse_path(path)
    if entity is None:
        return None
    quotas = {}
    for key in CLIENT_KEYS if entity.ip is None else IP_KEYS:
        if key in configs:
            try:
                quotas[key] = float(configs[key])
            except ValueError:
                # Only a tool can have written it; `client_quotas` reports it.
                continue
    return (entity, quotas) if quotas else None


def _make_match(component: DescribeClientQuotasRequestComponentData) -> Matches:
    match = component.match
    if component.match_type == MatchType.EXACT:
        if match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        return lambda name: name == match and name != DEFAULT
    try:
        match_type = MatchType(component.match_type)
    except ValueError:
        raise _invalid(f"Unknown match type {component.match_type}") from None
    if match is not None:
        raise _invalid(f"Request specified MATCH_TYPE_{match_type.name}, but also specified a match string.")
    return (lambda name: name == DEFAULT) if match_type is MatchType.DEFAULT else (lambda name: True)


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
