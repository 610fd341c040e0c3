"""The SASL mechanisms of a listener, made from its configuration. A mechanism's module is imported if it is enabled."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from odradek.replication.metadata.entity_configs import USERS
from odradek.replication.metadata.entity_names import sanitize_name
from odradek.replication.metadata.image import Configs
from odradek.server.security.sasl.mechanism import MakeExchange
from odradek.server.security.sasl.settings import MechanismSettings, SaslSettings

logger = logging.getLogger(__name__)

_SECRET_BITS: Final = 256


class MechanismParts(NamedTuple):
    """The parts of a broker that mechanisms need.

    entities: returns the configurations of users, by path (`EntityConfigs.configs`)
    random_bits: returns a random number of so many bits
    """

    entities: Callable[[], Mapping[str, Configs]]
    random_bits: Callable[[int], int]


class ListenerMechanism(NamedTuple):
    """An enabled mechanism of a listener. `max_reauth_ms`: maximum lifetime of a session; 0 without a limit."""

    make_exchange: MakeExchange
    max_reauth_ms: int


def make_mechanisms(settings: SaslSettings, parts: MechanismParts) -> dict[str, ListenerMechanism]:
    """Return the enabled mechanisms of a listener, by name. Raises PropertyError."""
    return {
        one.mechanism: ListenerMechanism(_MAKERS[one.mechanism](one, parts), one.max_reauth_ms)
        for one in settings.mechanisms
    }


def check_mechanisms(settings: SaslSettings) -> None:
    """Raise PropertyError if a mechanism of the listener cannot be made."""
    make_mechanisms(settings, MechanismParts(dict, lambda bits: 0))


def _make_plain(settings: MechanismSettings, parts: MechanismParts) -> MakeExchange:
    from odradek.server.security.sasl.plain import PlainExchange, find_users

    return partial(PlainExchange, find_users(settings.require_jaas().options))


def _make_scram(settings: MechanismSettings, parts: MechanismParts) -> MakeExchange:
    from odradek.server.security.sasl.scram import ScramExchange, UnknownUsers
    from odradek.server.security.sasl.scram_credentials import (
        SCRAM_MECHANISMS,
        ScramCredential,
        parse_credential,
    )

    mechanism = SCRAM_MECHANISMS[settings.mechanism]

    def find_credential(user: str) -> ScramCredential | None:
        text = parts.entities().get(f"{USERS}/{sanitize_name(user)}", {}).get(mechanism.name)
        try:
            return None if text is None else parse_credential(text)
        except ValueError:
            logger.error("the credential of user %r is malformed; set it again mechanism=%s", user, mechanism.name)
            return None

    unknown_users = UnknownUsers(mechanism, parts.random_bits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big"))
    return partial(ScramExchange, mechanism, find_credential, unknown_users, parts.random_bits)


_MAKERS: Final[Mapping[str, Callable[[MechanismSettings, MechanismParts], MakeExchange]]] = {
    "PLAIN": _make_plain,
    "SCRAM-SHA-256": _make_scram,
    "SCRAM-SHA-512": _make_scram,
}
