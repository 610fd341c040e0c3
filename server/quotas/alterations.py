"""Changes of quotas by AlterClientQuotas (KIP-546), with the checks and messages of Apache Kafka 4.3."""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.error import DNSLookupError

from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasRequestOpData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError
from odradek.server.quotas.entities import CLIENT_ID, DEFAULT, IP, USER, QuotaEntity
from odradek.server.quotas.keys import CLIENT_KEYS, IP_KEYS, QuotaKey

if TYPE_CHECKING:
    from odradek.server.work.clock import Resolver

logger = logging.getLogger(__name__)

Submit = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]
"""Runs a coroutine function after the changes of configurations before it."""

_Parts = Mapping[str, str | None]
_Values = Mapping[str, str | None]
"""New values by key; None removes a quota."""

_TYPES: Final = (CLIENT_ID, USER, IP)
_ROUNDED: Final = 1e-6
"""Fractions of integers up to which Kafka rounds them down."""


class QuotaAdmin:
    """Changes quotas in the metadata store, and publishes them on this broker."""

    def __init__(
        self,
        submit: Submit,
        store: MetadataStore,
        entities: EntityConfigs,
        resolver: "Resolver",
        now_ms: Callable[[], int],
    ) -> None:
        self._submit = submit
        self._store = store
        self._entities = entities
        self._resolver = resolver
        self._now_ms = now_ms

    async def alter(self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        """Set or remove quotas of each entity, or none of them if one is not valid. Each entity has its own error.

        As in Kafka an entity that the request repeats gets an error, although the first change is made.
        """
        errors: dict[tuple[tuple[str, str | None], ...], KafkaError | None] = {}
        for entry in request.entries:
            parts = _collect_parts(entry.entity)
            key = tuple(parts.items())
            if key in errors or _repeats_key(entry.ops):
                text = f"Ignoring duplicate entity ClientQuotaEntity(entries={_format_parts(parts)})"
                errors[key] = _invalid(text)
                continue
            errors[key] = None
            try:
                await self._alter_entity(parts, entry, validate_only=request.validate_only)
            except KafkaError as error:
                errors[key] = error
            except MetadataStoreError as error:
                errors[key] = as_kafka_error(error)
        return AlterClientQuotasResponse(entries=[_make_result(parts, error) for parts, error in errors.items()])

    async def _alter_entity(
        self, parts: _Parts, entry: AlterClientQuotasRequestEntryData, *, validate_only: bool
    ) -> None:
        entity = _check_entity(parts)
        if entity.ip:
            await self._check_address(entity.ip)
        values = _check_values(entry.ops, CLIENT_KEYS if entity.ip is None else IP_KEYS)
        if values and not validate_only:
            await self._submit("change quotas", partial(self._change, entity.path, values))

    async def _check_address(self, address: str) -> None:
        """Raise KafkaError INVALID_REQUEST for what is neither an address nor the name of a host."""
        try:
            ip_address(address)
        except ValueError:
            try:
                await self._resolver.resolve(address)
            except (DNSLookupError, UnicodeError):
                raise _invalid(f"{address} is not a valid IP or resolvable host.") from None

    async def _change(self, path: str, values: _Values) -> None:
        def change(before: Configs) -> Configs:
            after = {**before, **values}
            return {key: value for key, value in after.items() if value is not None}

        self._entities.put(path, await change_entity(self._store, path, change, self._now_ms))
        logger.info("changed quotas entity=%s quotas=%s", path, values)


def _collect_parts(entity: Sequence[AlterClientQuotasRequestEntityData]) -> _Parts:
    """Return the names by type, in the order of Kafka's responses; of a repeated type the last one counts."""
    names = {part.entity_type: part.entity_name for part in entity}
    known: dict[str, str | None] = {kind: names.pop(kind) for kind in _TYPES if kind in names}
    return {**known, **names}


def _check_entity(parts: _Parts) -> QuotaEntity:
    """Return the entity. Raises KafkaError INVALID_REQUEST."""
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in parts and len(parts) > 1:
        raise _invalid(
            # As Apache Kafka 4.3 spells it.
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    names = {kind: DEFAULT if name is None else name for kind, name in parts.items()}
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def _repeats_key(ops: Sequence[AlterClientQuotasRequestOpData]) -> bool:
    return len({op.key for op in ops}) < len(ops)


def _check_values(ops: Sequence[AlterClientQuotasRequestOpData], keys: Mapping[str, QuotaKey]) -> _Values:
    """Return the values to store. Raises KafkaError INVALID_REQUEST. The removal of an unknown key has no effect."""
    values: dict[str, str | None] = {}
    for op in ops:
        key = keys.get(op.key)
        if op.remove:
            if key is not None:
                values[op.key] = None
        elif key is None:
            raise _invalid(f"Invalid configuration key {op.key}")
        else:
            values[op.key] = format_quota(op.key, key, op.value)
    return values


def format_quota(name: str, key: QuotaKey, value: float) -> str:
    """Return the text of a value, as Kafka stores it. Raises KafkaError.

    Unlike Kafka this refuses values that would limit nothing: NaN, and integers that are nearly 0.
    """
    if not value > (0 if key.integer_type is None else _ROUNDED):
        raise _invalid(f"Quota {name} must be greater than 0")
    if key.integer_type is None:
        return "Infinity" if value == float("inf") else repr(value)
    if value > key.maximum:
        raise _invalid(f"Proposed value for {name} is too large for {key.integer_type}.")
    if value % 1 > _ROUNDED:
        raise _invalid(f"{name} cannot be a fractional value.")
    return str(min(int(value), INT64_MAX))


def _format_parts(parts: _Parts) -> str:
    """Return the parts as Java prints a map."""
    pairs = [f"{kind}={'null' if name is None else name}" for kind, name in parts.items()]
    return f"{{{', '.join(pairs)}}}"


def _make_result(
    parts: Sequence[tuple[str, str | None]], error: KafkaError | None
) -> AlterClientQuotasResponseEntryData:
    return AlterClientQuotasResponseEntryData(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        entity=[AlterClientQuotasResponseEntityData(entity_type=kind, entity_name=name) for kind, name in parts],
    )


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
