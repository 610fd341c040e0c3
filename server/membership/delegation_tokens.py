"""The delegation tokens of a broker with `delegation.token.secret.key`."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.metadata.store import MetadataStore
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment

if TYPE_CHECKING:
    from odradek.replication.controller.token_changes import TokenChanges
    from odradek.server.work.delayed_tasks import DelayedTasks

logger = logging.getLogger(__name__)


def make_tokens(
    config: BrokerConfig, store: MetadataStore, events: EventLoop, environment: Environment
) -> "TokenChanges | None":
    """Return the tokens, which are not loaded yet, and their changes as events; None without a secret."""
    secret = config.token_secret
    if not secret:
        return None
    # Imported here because most brokers have no tokens.
    from odradek.replication.controller.token_changes import TokenChanges, TokenSettings
    from odradek.replication.metadata.delegation_tokens import TokenCache

    cache = TokenCache(
        store,
        lambda description, work: events.post(EventKind.CONFIGURATION, description, work),
        events.executor.pause,
        secret,
    )
    settings = TokenSettings(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
    return TokenChanges(store, cache, events, settings, environment.now_ms, environment.random_source.randbytes)


def delete_expired_tokens(
    tokens: "TokenChanges", interval_ms: int, tasks: "DelayedTasks", is_controller: Callable[[], bool]
) -> None:
    """Delete expired tokens regularly, on the broker that is the controller."""

    async def run() -> None:
        try:
            if is_controller():
                await tokens.delete_expired()
        except KafkaError as error:
            logger.warning("expired delegation tokens were not deleted; retrying later error=%s", error)
        finally:
            tasks.run_later(interval_ms, run)

    tasks.run_later(0, run)
