"""Metadata about clients: configurations of users, client ids, addresses and client metrics, ACLs, delegation tokens.

Each is loaded at start, and again in a new session; a cluster member follows the changes of others. ACLs and tokens
exist only if they are configured.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CLIENT_METRICS, EntityConfigs
from odradek.replication.metadata.scram_secret import load_secret
from odradek.replication.metadata.store import MetadataStore
from odradek.server.config import BrokerConfig
from odradek.server.config.properties.sasl import SASL_PROTOCOLS
from odradek.server.environment import Environment
from odradek.server.work.delayed_tasks import DelayedTasks

if TYPE_CHECKING:
    from odradek.replication.controller.acl_changes import AclChanges
    from odradek.replication.controller.token_changes import TokenChanges
    from odradek.server.security.sasl.unknown_users import UnknownUsers

logger = logging.getLogger(__name__)


class ClientMetadata:
    """The metadata about clients in the store, and its changes as events. It is complete after `load`.

    acls: the ACLs and their changes; None without an authorizer
    client_metrics: the subscriptions of client metrics
    tokens: the delegation tokens and their changes; None without a secret for them
    unknown_users: credentials of SCRAM users that do not exist; None without a listener with SASL
    """

    def __init__(self, config: BrokerConfig, environment: Environment, store: MetadataStore, events: EventLoop) -> None:
        self._config = config
        self._environment = environment
        self._store = store
        self._events = events
        self.entity_configs = EntityConfigs(store, self._post)
        self.client_metrics = EntityConfigs(store, self._post, (CLIENT_METRICS,), znodes.CLIENT_METRICS_CHANGES)
        self.acls = self._make_acls()
        self.tokens = self._make_tokens()
        self.unknown_users = self._make_unknown_users()

    def _post(self, description: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._events.post(EventKind.CONFIGURATION, description, work)

    def _make_acls(self) -> "AclChanges | None":
        if not self._config.authorizer_class_name:
            return None
        # Imported here because most brokers have no authorizer.
        from odradek.replication.controller.acl_changes import AclChanges
        from odradek.replication.metadata.acls.acl_cache import AclCache

        cache = AclCache(self._store, self._post, self._events.executor.pause)
        return AclChanges(self._store, cache, self._events, self._environment.now_ms)

    def _make_tokens(self) -> "TokenChanges | None":
        config, environment = self._config, self._environment
        secret = config.token_secret
        if not secret:
            return None
        # Imported here because most brokers have no tokens.
        from odradek.replication.controller.token_changes import TokenChanges, TokenSettings
        from odradek.replication.metadata.delegation_tokens import TokenCache

        cache = TokenCache(self._store, self._post, self._events.executor.pause, secret)
        settings = TokenSettings(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        return TokenChanges(
            self._store, cache, self._events, settings, environment.now_ms, environment.random_source.randbytes
        )

    def _make_unknown_users(self) -> "UnknownUsers | None":
        if not any(listener.protocol in SASL_PROTOCOLS for listener in self._config.endpoints):
            return None
        # Imported here because most brokers need no SASL.
        from odradek.server.security.sasl.unknown_users import UnknownUsers

        unknown_users = UnknownUsers(b"")
        self.entity_configs.listeners.append(unknown_users.update)
        return unknown_users

    async def load(self) -> None:
        """Load everything, in a new session again. Raises MetadataStoreError."""
        if self.unknown_users is not None:
            self.unknown_users.secret = await load_secret(self._store, self._environment.random_source.randbytes)
        await self._events.submit(
            EventKind.CONFIGURATION, "load configurations of users and clients", self.entity_configs.start
        )
        await self._events.submit(
            EventKind.CONFIGURATION, "load subscriptions of client metrics", self.client_metrics.start
        )
        if self.acls is not None:
            await self.acls.load()
        if self.tokens is not None:
            await self.tokens.load()

    async def follow(self) -> None:
        """Read what notices point to, after an event that failed. Raises MetadataStoreError."""
        await self.entity_configs.follow()
        await self.client_metrics.follow()
        if self.acls is not None:
            await self.acls.cache.follow()
        if self.tokens is not None:
            await self.tokens.cache.follow()

    def delete_expired_tokens(self, tasks: DelayedTasks, is_controller: Callable[[], bool]) -> None:
        """Delete expired tokens regularly, on the broker that is the controller."""
        tokens = self.tokens
        if tokens is None:
            return

        async def run() -> None:
            try:
                if is_controller():
                    await tokens.delete_expired()
            except KafkaError as error:
                logger.warning("expired delegation tokens were not deleted; retrying later error=%s", error)
            finally:
                tasks.run_later(self._config.delegation_token_expiry_check_interval_ms, run)

        tasks.run_later(0, run)
