"""The charges of the requests of one connection, while some client has a quota."""

import struct
from typing import TYPE_CHECKING, Final

from odradek.protocol.codec_source import Buffer
from odradek.server.quotas.charge import RequestCharge

if TYPE_CHECKING:
    from odradek.server.quotas.client_quotas import ClientLimits, ClientQuotas
    from odradek.server.security.principal import Principal

_SIZE_BYTES: Final = 4
_read_key: Final = struct.Struct(">4xh6xh").unpack_from
_CLIENT_ID_AT: Final = 14

_PRODUCE, _FETCH, _METADATA = 0, 1, 3
_CREATE_TOPICS, _DELETE_TOPICS, _CREATE_PARTITIONS = 19, 20, 37

_EXEMPT_KEYS: Final = frozenset((4, 5, 6, 7, 27, 56, 67))
"""Requests between brokers: LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, WriteTxnMarkers,
AlterPartition, AllocateProducerIds. Fetches of followers are exempt too. Those of clients that may not send them count.
"""

_MUTATING_KEYS: Final = frozenset((_METADATA, _CREATE_TOPICS, _DELETE_TOPICS, _CREATE_PARTITIONS))
"""Requests that may create or delete partitions."""


class ClientCharges:
    """Makes the charges of the requests of one connection. A connection has nearly always one client."""

    __slots__ = ("_client_id_bytes", "_epoch", "_limits", "_principal", "_quotas")

    def __init__(self, quotas: "ClientQuotas") -> None:
        self._quotas = quotas
        self._epoch = -1
        self._principal: Principal | None = None
        self._client_id_bytes = b""
        self._limits: ClientLimits | None = None

    def make_charge(self, frame: Buffer, principal: "Principal") -> RequestCharge | None:
        """Return the charge of a request; None if no quota applies to it."""
        if len(frame) < _CLIENT_ID_AT:
            return None
        key, size = _read_key(frame)
        limits = self._find_limits(bytes(frame[_CLIENT_ID_AT : _CLIENT_ID_AT + max(size, 0)]), principal)
        if limits is None:
            return None
        if key in _EXEMPT_KEYS:
            return None if limits.request is None else RequestCharge(self._quotas, limits, 0, is_exempt=True)
        if (
            limits.request is not None
            or (key == _PRODUCE and limits.produce is not None)
            or (key == _FETCH and limits.fetch is not None)
            or (key in _MUTATING_KEYS and limits.mutation is not None)
        ):
            return RequestCharge(self._quotas, limits, len(frame) - _SIZE_BYTES if key == _PRODUCE else 0)
        return None

    def _find_limits(self, client_id_bytes: bytes, principal: "Principal") -> "ClientLimits | None":
        quotas = self._quotas
        if self._epoch != quotas.epoch or client_id_bytes != self._client_id_bytes or principal is not self._principal:
            # An id that is no UTF-8 text closes the connection later.
            found = quotas.find(principal.name, client_id_bytes.decode(errors="replace"))
            self._limits = None if found.is_empty else found
            self._epoch, self._client_id_bytes, self._principal = quotas.epoch, client_id_bytes, principal
        return self._limits
