"""Changes of delegation tokens (KIP-48), by any broker of a cluster.

A change is in the broker's cache before the response; other brokers follow its notice. The checks, their order and the
lifetimes are those of Kafka 4.3's DelegationTokenControlManager; a token and its notice are written in one transaction.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs.nodes import remove_old_notices
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.controller.events import EventKind, EventLoop, Work
from odradek.replication.controller.races import retry_races
from odradek.replication.metadata import znodes
from odradek.replication.metadata.delegation_tokens import (
    CHANGES,
    NOTICE_PREFIX,
    DelegationToken,
    TokenCache,
    decode_token,
    encode_token,
    token_path,
)
from odradek.replication.metadata.loader import read_node
from odradek.replication.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    TransactionError,
    TransactionTooLargeError,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

Change = Callable[[DelegationToken], DelegationToken | None]
"""Returns the new state of a token, or None to delete it; called again if another broker was faster."""


class TokenSettings(NamedTuple):
    """The properties `delegation.token.*`."""

    max_lifetime_ms: int
    expiry_time_ms: int


class TokenChanges:
    """Writes changes of tokens to the store and puts them into the cache, one request after another.

    cache: the tokens that this broker accepts
    random_bytes: returns random bytes, of which a token's id is made
    """

    def __init__(
        self,
        store: MetadataStore,
        cache: TokenCache,
        events: EventLoop,
        settings: TokenSettings,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.cache = cache
        self._store = store
        self._events = events
        self._settings = settings
        self._now_ms = now_ms
        self._random_bytes = random_bytes

    async def load(self) -> None:
        """Load all tokens, in a new session again. Raises MetadataStoreError."""
        await self._events.submit(EventKind.CONFIGURATION, "load delegation tokens", self.cache.start)

    async def create(
        self, owner: str, requester: str, renewers: Sequence[str], max_lifetime_ms: int
    ) -> DelegationToken:
        """Create a token; without a positive lifetime it has the longest one. Raises KafkaError."""
        now_ms, settings = self._now_ms(), self._settings
        lifetime_ms = settings.max_lifetime_ms
        if max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, max_lifetime_ms)
        max_ms = _add(now_ms, lifetime_ms)
        expires_ms = min(max_ms, _add(now_ms, settings.expiry_time_ms))
        token_id = znodes.uuid_text(self._random_bytes(16))
        token = DelegationToken(token_id, owner, requester, tuple(renewers), now_ms, max_ms, expires_ms)

        async def run() -> None:
            operations = [Create(token_path(token_id), encode_token(token)), *await self._notices(token_id)]
            try:
                await self._store.transaction(operations)
            except TransactionError as error:
                # No other token has this id: an attempt whose connection was lost has created it.
                if error.index != 0 or not isinstance(error.cause, NodeExistsError):
                    raise
            self.cache.put({token_id: token})

        await self._submit("create a delegation token", partial(retry_races, run))
        logger.info("created a delegation token token=%s owner=%s requester=%s", token_id, owner, requester)
        return token

    async def renew(self, principal: str, hmac: bytes, period_ms: int) -> int:
        """Extend a token's validity, at most to its maximum; return the time until which it is valid.

        period_ms: from now; if it is not positive, or longer, that of the configuration

        Raises KafkaError DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """

        def change(token: DelegationToken) -> DelegationToken:
            now_ms = self._now_ms()
            _check_valid(token, now_ms)
            _check_renewer(token, principal)
            longest_ms = self._settings.expiry_time_ms
            lifetime_ms = min(longest_ms, period_ms) if period_ms > 0 else longest_ms
            return token._replace(expires_ms=min(token.max_ms, _add(now_ms, lifetime_ms)))

        renewed = await self._change("renew a delegation token", hmac, change)
        assert renewed is not None
        return renewed.expires_ms

    async def expire(self, principal: str, hmac: bytes, period_ms: int) -> int:
        """Change the time until which a token is valid, or delete it with a negative period; return the time.

        Raises KafkaError DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_OWNER_MISMATCH, DELEGATION_TOKEN_EXPIRED.
        """

        was_there = False

        def change(token: DelegationToken) -> DelegationToken | None:
            nonlocal was_there
            now_ms = self._now_ms()
            _check_renewer(token, principal)
            if period_ms < 0:
                was_there = True
                return None
            _check_valid(token, now_ms)
            return token._replace(expires_ms=min(token.max_ms, _add(now_ms, period_ms)))

        try:
            changed = await self._change("expire a delegation token", hmac, change)
        except KafkaError as error:
            # An attempt whose connection was lost may have deleted it.
            if error.code != ErrorCode.DELEGATION_TOKEN_NOT_FOUND or not was_there:
                raise
            changed = None
        return self._now_ms() if changed is None else changed.expires_ms

    async def delete_expired(self) -> None:
        """Delete the tokens that are no longer valid. Raises KafkaError."""
        pause = self._events.executor.pause

        def change(token: DelegationToken) -> DelegationToken | None:
            return None if token.has_expired(self._now_ms()) else token

        async def run() -> None:
            for token in list(self.cache.tokens.values()):
                await pause()
                if token.has_expired(self._now_ms()):
                    await self._update(token.token_id, change)

        await self._submit("delete expired delegation tokens", run)

    async def _change(self, description: str, hmac: bytes, change: Change) -> DelegationToken | None:
        async def run() -> DelegationToken | None:
            if self.cache.find_by_hmac(hmac) is None and self._store.is_shared:
                # Another broker may have created it just now.
                await self.cache.follow()
            token = self.cache.find_by_hmac(hmac)
            if token is None or not await self._update(token.token_id, change):
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
            return self.cache.tokens.get(token.token_id)

        return await self._submit(description, run)

    async def _submit(self, description: str, work: Work[T]) -> T:
        """Run work as an event. Raises KafkaError."""
        try:
            return await self._events.submit(EventKind.CONFIGURATION, description, work)
        except TransactionTooLargeError:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the token has too many renewers") from None
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error

    async def _update(self, token_id: str, change: Change) -> bool:
        """Replace a token by `change` of its content in the store; return whether it was there."""
        return await retry_races(partial(self._update_once, token_id, change))

    async def _update_once(self, token_id: str, change: Change) -> bool:
        await self._store.ready()
        path = token_path(token_id)
        try:
            before, version = await read_node(self._store, path, _decode)
        except NoNodeError:
            self.cache.put({token_id: None})
            return False
        after = change(before)
        if after != before:
            operation = Delete(path, version) if after is None else SetData(path, encode_token(after), version)
            await self._store.transaction([operation, *await self._notices(token_id)])
        self.cache.put({token_id: after})
        if after is None:
            logger.info("deleted a delegation token token=%s owner=%s", token_id, before.owner)
        return True

    async def _notices(self, token_id: str) -> list[Operation]:
        """Return a notice of a change for other brokers, if there may be any, and the removal of old ones."""
        if not self._store.is_shared:
            return []
        notice = Create(f"{CHANGES}/{NOTICE_PREFIX}", token_id.encode(), sequential=True)
        return [notice, *await remove_old_notices(self._store, CHANGES, self._now_ms())]


def _decode(node: Node) -> tuple[DelegationToken, int]:
    """Return a token and the version of its node."""
    return decode_token(node.data), node.stat.version


def _check_valid(token: DelegationToken, now_ms: int) -> None:
    if token.has_expired(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _check_renewer(token: DelegationToken, principal: str) -> None:
    if not token.is_owner_or_renewer(principal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _add(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, INT64_MAX)
