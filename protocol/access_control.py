"""Codes of access control lists on the wire: resource types, pattern types, operations and permissions.

Sources: Kafka's ResourceType, PatternType, AclOperation and AclPermissionType; KIP-11, KIP-290, KIP-373.
"""

from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Self


class _Code(IntEnum):
    """A code with Kafka's two spellings of its name: READ, and Read in ZooKeeper and tools."""

    @cached_property
    def title(self) -> str:
        """The name as in ZooKeeper's nodes and in Kafka's tools, such as `TransactionalId`."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the member with a name in either spelling, case-insensitive. Raises ValueError."""
        code = _find_code(cls, text)
        if code is None:
            raise ValueError(f"unknown {cls.__name__}: {text!r}")
        return cls(code)

    @classmethod
    def from_code(cls, code: int) -> Self:
        """Return the member with a code; UNKNOWN, as Kafka, for any other number."""
        try:
            return cls(code)
        except ValueError:
            return cls(0)


@lru_cache(maxsize=256)
def _find_code(kind: type[_Code], text: str) -> int | None:
    wanted = text.replace("_", "").lower()
    return next((code for code in kind if code.title.lower() == wanted), None)


class ResourceType(_Code):
    """The type of a resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """The relation of a pattern's name to the names of resources (KIP-290). ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Code):
    """An operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Code):
    """The effect of an ACL."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3
