"""Adoption of ACLs, SCRAM credentials, quotas and delegation tokens from Apache Kafka's metadata log.

What the store has already remains: a user or an ACL may have been added by a tool before the first start. A repeated
adoption has the same result. What cannot be adopted is reported, because the broker may be less protected without it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from odradek.log.storage.found_directories import format_names
from odradek.protocol.access_control import PatternType, ResourceType
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.metadata.acls import nodes
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import NO_ENTRIES, AclBinding, AclEntry, Entries, ResourcePattern
from odradek.replication.metadata.delegation_tokens import (
    DelegationToken,
    TokenCache,
    decode_token,
    encode_token,
    token_path,
)
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.kraft_security import KraftCredential, KraftSecurity, QuotaParts
from odradek.replication.metadata.store import Create, MetadataStore, Operation, SetData
from odradek.replication.pauses import no_pause
from odradek.server.config import BrokerConfig
from odradek.server.quotas.alterations import format_quota
from odradek.server.quotas.entities import CLIENT_ID, DEFAULT, IP, USER, QuotaEntity
from odradek.server.quotas.keys import CLIENT_KEYS, IP_KEYS
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, ScramCredential, format_credential
from odradek.server.security.sasl.scram_users import user_path

logger = logging.getLogger(__name__)

_NODES_PER_TRANSACTION: Final = 50
_PATTERN_TYPES: Final = (PatternType.LITERAL, PatternType.PREFIXED)
_NOT_NODE_NAMES: Final = (".", "..")
_MECHANISMS: Final = {mechanism.number: name for name, mechanism in SCRAM_MECHANISMS.items()}


async def adopt_security(
    store: MetadataStore, security: KraftSecurity, config: BrokerConfig, now_ms: Callable[[], int]
) -> None:
    """Add everything to the store that it lacks. Raises MetadataStoreError."""
    refused: list[str] = []
    entities = _collect_entities(security, refused)
    patterns = _collect_patterns(security.acls.values(), refused)
    for path, configs in entities.items():
        await change_entity(store, path, partial(_add_missing, configs), now_ms)
    if patterns:
        await _add_acls(store, patterns)
    tokens = _collect_tokens(security.tokens.values(), refused)
    if tokens:
        await _add_tokens(store, tokens)
    if refused:
        logger.error(
            "metadata of Apache Kafka is not adopted, because it is not supported; check that clients have no more "
            "rights without it count=%d: %s", len(refused), format_names(refused),
        )  # fmt: skip
    count = sum(map(len, patterns.values()))
    if entities or patterns or tokens:
        logger.info(
            "adopted users, quotas, ACLs and delegation tokens of Apache Kafka entities=%d acls=%d tokens=%d",
            len(entities), count, len(tokens),
        )  # fmt: skip
    if patterns and not config.authorizer_class_name:
        logger.warning(
            "the adopted ACLs have no effect, and every client may do everything; set authorizer.class.name count=%d",
            count,
        )


def _collect_entities(security: KraftSecurity, refused: list[str]) -> dict[str, dict[str, str]]:
    """Return the configurations of users, client ids and addresses, by the path of the entity."""
    entities: dict[str, dict[str, str]] = {}
    for one in security.credentials.values():
        name = _MECHANISMS.get(one.mechanism)
        if name is None or one.user in _NOT_NODE_NAMES:
            refused.append(f"credential of user {one.user!r} with mechanism {one.mechanism}")
        else:
            entities.setdefault(user_path(one.user), {})[name] = _format(one)
    for parts, quotas in security.quotas.items():
        entity = _find_entity(parts)
        keys = CLIENT_KEYS if entity is None or entity.ip is None else IP_KEYS
        for key, value in quotas.items():
            try:
                text = None if entity is None or key not in keys else format_quota(key, keys[key], value)
            except KafkaError:
                text = None
            if entity is None or text is None:
                refused.append(f"quota {key}={value:g} of {dict(sorted(parts))!r}")
            else:
                entities.setdefault(entity.path, {})[key] = text
    return entities


def _add_missing(adopted: Configs, current: Configs) -> Configs:
    return {**adopted, **current}


def _format(one: KraftCredential) -> str:
    return format_credential(ScramCredential(one.salt, one.stored_key, one.server_key, one.iterations))


def _find_entity(parts: QuotaParts) -> QuotaEntity | None:
    """Return an entity with quotas; None if there is none of these types and names."""
    names = {kind: DEFAULT if name is None else name for kind, name in parts}
    entity = QuotaEntity(names.pop(USER, None), names.pop(CLIENT_ID, None), names.pop(IP, None))
    is_possible = parts and not names and all(name not in _NOT_NODE_NAMES for _, name in parts)
    return entity if is_possible else None


def _collect_patterns(
    bindings: Iterable[AclBinding], refused: list[str]
) -> dict[ResourcePattern, set[AclEntry]]:
    patterns: dict[ResourcePattern, set[AclEntry]] = {}
    for pattern, entry in bindings:
        is_known = pattern.resource_type > ResourceType.ANY and pattern.pattern_type in _PATTERN_TYPES
        if is_known and entry.operation and entry.permission and ":" in entry.principal:
            patterns.setdefault(pattern, set()).add(entry)
        else:
            refused.append(f"ACL {AclBinding(pattern, entry)}")
    return patterns


async def _add_acls(store: MetadataStore, patterns: Mapping[ResourcePattern, set[AclEntry]]) -> None:
    cache = AclCache(store, lambda description, work: None, no_pause)
    await cache.start()
    operations: list[Operation] = []
    for pattern, added in patterns.items():
        current = cache.acls.get(pattern, NO_ENTRIES)
        if not added <= current:
            operations.append(_make_acl_operation(store, pattern, current | added, is_new=not current))
    await _write(store, operations)


def _make_acl_operation(store: MetadataStore, pattern: ResourcePattern, entries: Entries, *, is_new: bool) -> Operation:
    path, data = nodes.path_of(store, pattern), run_steps(nodes.encode_entries_in_steps(entries))
    return Create(path, data) if is_new else SetData(path, data)


def _collect_tokens(tokens: Iterable[DelegationToken], refused: list[str]) -> dict[str, bytes]:
    """Return the contents of the nodes of tokens, by id."""
    collected = {}
    for token in tokens:
        data = encode_token(token)
        try:
            decode_token(data)
        except ValueError:
            refused.append(f"delegation token {token.token_id!r}")
        else:
            collected[token.token_id] = data
    return collected


async def _add_tokens(store: MetadataStore, tokens: Mapping[str, bytes]) -> None:
    """Add the tokens. A token's secret follows from its id and `delegation.token.secret.key`, as in Kafka."""
    cache = TokenCache(store, lambda description, work: None, no_pause, b"")
    await cache.start()
    missing = sorted(tokens.keys() - cache.tokens.keys())
    await _write(store, [Create(token_path(token_id), tokens[token_id]) for token_id in missing])


async def _write(store: MetadataStore, operations: Iterable[Operation]) -> None:
    rest: Iterator[Operation] = iter(operations)
    while some := list(islice(rest, _NODES_PER_TRANSACTION)):
        await store.transaction(some)
