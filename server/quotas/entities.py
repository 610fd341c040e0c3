"""Entities with quotas: users, client ids, pairs of them, IP addresses, and the defaults of each.

The path of an entity is that of `replication.metadata.entity_configs`, with percent-encoded names as Kafka's Sanitizer
writes them.
"""

from typing import Final, NamedTuple

from odradek.replication.metadata.entity_configs import CLIENTS, IPS, USERS
from odradek.replication.metadata.entity_names import desanitize_name, sanitize_name
from odradek.replication.metadata.znodes import DEFAULT_ENTITY

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

DEFAULT: Final = ""
"""The name of a default entity. No other entity has an empty name."""


class QuotaEntity(NamedTuple):
    """An entity; a part is None if the entity does not specify it, DEFAULT for the default."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The types and names of the parts that are specified, in the order of Kafka's responses."""
        named = ((CLIENT_ID, self.client_id), (USER, self.user), (IP, self.ip))
        return [(kind, name) for kind, name in named if name is not None]

    @property
    def path(self) -> str:
        """The path of the configuration."""
        if self.ip is not None:
            return f"{IPS}/{_sanitize(self.ip)}"
        if self.user is None:
            assert self.client_id is not None
            return f"{CLIENTS}/{_sanitize(self.client_id)}"
        user = f"{USERS}/{_sanitize(self.user)}"
        return user if self.client_id is None else f"{user}/{CLIENTS}/{_sanitize(self.client_id)}"


def parse_path(path: str) -> QuotaEntity | None:
    """Return the entity of a path; None if it is that of no entity with quotas."""
    match path.split("/"):
        case ["users", user]:
            return QuotaEntity(user=_desanitize(user))
        case ["users", user, "clients", client_id]:
            return QuotaEntity(user=_desanitize(user), client_id=_desanitize(client_id))
        case ["clients", client_id]:
            return QuotaEntity(client_id=_desanitize(client_id))
        case ["ips", ip]:
            return QuotaEntity(ip=_desanitize(ip))
    return None


def _sanitize(name: str) -> str:
    return sanitize_name(name) if name else DEFAULT_ENTITY


def _desanitize(name: str) -> str:
    return DEFAULT if name == DEFAULT_ENTITY else desanitize_name(name)
