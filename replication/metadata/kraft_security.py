"""ACLs, SCRAM credentials, quotas and delegation tokens in Apache Kafka's metadata log (KRaft), for their adoption.

Sources: KIP-746, KIP-801 (ACLs), KIP-900 (SCRAM), KIP-373 (tokens); record types and versions as of Apache Kafka 4.3.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Float64, Int8, Int32, Int64, Uuid
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, ResourcePattern
from odradek.replication.metadata.delegation_tokens import DelegationToken


class DelegationTokenRecord(Message, key=10, flexible=0):
    """A delegation token was created or renewed. Its secret is not in the record."""

    owner: str
    requester: str
    renewers: list[str]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: str


class UserScramCredentialRecord(Message, key=11, flexible=0):
    """A SCRAM credential of a user was set."""

    name: str
    mechanism: Int8
    salt: bytes = field(is_secret=True)
    stored_key: bytes = field(is_secret=True)
    server_key: bytes = field(is_secret=True)
    iterations: Int32


class ClientQuotaRecordEntityData(Struct):
    entity_type: str
    entity_name: str | None


class ClientQuotaRecord(Message, key=14, flexible=0):
    """A quota was set or removed."""

    entity: list[ClientQuotaRecordEntityData]
    key: str
    value: Float64
    remove: bool


class AccessControlEntryRecord(Message, key=18, flexible=0):
    """An ACL was created."""

    id: Uuid
    resource_type: Int8
    resource_name: str
    pattern_type: Int8
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class RemoveAccessControlEntryRecord(Message, key=19, flexible=0):
    """An ACL was deleted."""

    id: Uuid


class RemoveUserScramCredentialRecord(Message, key=22, flexible=0):
    """A SCRAM credential of a user was removed."""

    name: str
    mechanism: Int8


class RemoveDelegationTokenRecord(Message, key=26, flexible=0):
    """A delegation token was removed."""

    token_id: str


class KraftCredential(NamedTuple):
    """A SCRAM credential. `mechanism`: its number in requests (KIP-554)."""

    user: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"KraftCredential({self.user!r}, {self.mechanism}, {self.iterations})"


QuotaParts = frozenset[tuple[str, str | None]]
"""The types and names of an entity with quotas; None is the name of the default."""


class KraftSecurity:
    """The result of the replay of records.

    acls: by the id of their records
    credentials: by user and mechanism
    quotas: values by key, by entity
    tokens: by token id
    """

    def __init__(self) -> None:
        self.acls: dict[bytes, AclBinding] = {}
        self.credentials: dict[tuple[str, int], KraftCredential] = {}
        self.quotas: dict[QuotaParts, dict[str, float]] = {}
        self.tokens: dict[str, DelegationToken] = {}

    def apply(self, record: Message) -> None:
        """Apply a record of one of SECURITY_RECORDS."""
        _APPLY[type(record)](self, record)

    def _put_acl(self, record: AccessControlEntryRecord) -> None:
        pattern = ResourcePattern(
            ResourceType.from_code(record.resource_type),
            record.resource_name,
            PatternType.from_code(record.pattern_type),
        )
        operation, permission = Operation.from_code(record.operation), Permission.from_code(record.permission_type)
        self.acls[record.id] = AclBinding(pattern, AclEntry(record.principal, record.host, operation, permission))

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        self.acls.pop(record.id, None)

    def _put_credential(self, record: UserScramCredentialRecord) -> None:
        self.credentials[record.name, record.mechanism] = KraftCredential(
            record.name,
            record.mechanism,
            bytes(record.salt),
            bytes(record.stored_key),
            bytes(record.server_key),
            record.iterations,
        )

    def _remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        self.credentials.pop((record.name, record.mechanism), None)

    def _put_quota(self, record: ClientQuotaRecord) -> None:
        parts = frozenset((part.entity_type, part.entity_name) for part in record.entity)
        quotas = self.quotas.setdefault(parts, {})
        if record.remove:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value
        if not quotas:
            del self.quotas[parts]

    def _put_token(self, record: DelegationTokenRecord) -> None:
        self.tokens[record.token_id] = DelegationToken(
            record.token_id,
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        self.tokens.pop(record.token_id, None)


_APPLY: Final[Mapping[type[Message], Callable[[KraftSecurity, Any], None]]] = {
    DelegationTokenRecord: KraftSecurity._put_token,
    UserScramCredentialRecord: KraftSecurity._put_credential,
    ClientQuotaRecord: KraftSecurity._put_quota,
    AccessControlEntryRecord: KraftSecurity._put_acl,
    RemoveAccessControlEntryRecord: KraftSecurity._remove_acl,
    RemoveUserScramCredentialRecord: KraftSecurity._remove_credential,
    RemoveDelegationTokenRecord: KraftSecurity._remove_token,
}

SECURITY_RECORDS: Final[tuple[type[Message], ...]] = tuple(_APPLY)
"""The record types."""
