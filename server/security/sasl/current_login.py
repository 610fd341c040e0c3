"""The login of this broker at others, replaced when its properties change."""

import logging
from typing import TYPE_CHECKING

from odradek.properties import PropertyError
from odradek.server.security.sasl.inter_broker import InterBrokerLogin, InterBrokerParts, make_inter_broker_login
from odradek.server.security.sasl.mechanism import Ask
from odradek.server.security.sasl.settings import make_inter_broker_settings

if TYPE_CHECKING:
    from odradek.server.config import BrokerConfig

logger = logging.getLogger(__name__)


class CurrentLogin:
    """Authenticates the broker with the login of its present configuration. Raises PropertyError when it is made."""

    def __init__(self, config: "BrokerConfig", parts: InterBrokerParts) -> None:
        self._parts = parts
        self._settings = make_inter_broker_settings(config)
        self._login = make_inter_broker_login(config, parts)
        self._is_started = False

    async def authenticate(self, ask: Ask, host: str) -> int:
        """Authenticate a connection; return the session's lifetime in ms, 0 without an end. Raises SaslError."""
        return await self._login.authenticate(ask, host)

    def start(self) -> None:
        """Begin the login's work in the background."""
        self._is_started = True
        self._login.start()

    def stop(self) -> None:
        """End the login's work."""
        self._is_started = False
        self._login.stop()

    def update(self, config: "BrokerConfig") -> None:
        """Use a changed configuration for the next connections, unless a login cannot be made of it."""
        try:
            settings = make_inter_broker_settings(config)
            login = None if settings.has_values_of(self._settings) else make_inter_broker_login(config, self._parts)
        except PropertyError as error:
            logger.error("changed credentials for other brokers are not used, and the last ones remain: %s", error)
            return
        if login is not None:
            self._replace(login)
            self._settings = settings

    def _replace(self, login: InterBrokerLogin) -> None:
        last, self._login = self._login, login
        if last.tokens is not None and login.tokens is not None:
            login.tokens.begin_with(last.tokens)
        if self._is_started:
            last.stop()
            login.start()
