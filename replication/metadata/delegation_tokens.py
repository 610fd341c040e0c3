"""Delegation tokens (KIP-48): loaded at start, and read again when a notice points to a change.

The store has the description of a token, and its HMAC is computed with a secret that all brokers have. Sources: Kafka
3.9's DelegationTokenManagerZk, DelegationTokenCache and ZkData; KIP-373 (owners that differ from requesters).
"""

import hmac
import logging
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.replication.metadata import znodes
from odradek.replication.metadata.change_notices import ChangeNotices, Post, lay_out
from odradek.replication.metadata.entity_names import desanitize_name, sanitize_name
from odradek.replication.metadata.loader import get_children_if_any, read_nodes
from odradek.replication.metadata.store import MetadataStore, Node, WatchEvent
from odradek.replication.pauses import Pause

TOKENS: Final = "/delegation_token/tokens"
CHANGES: Final = "/delegation_token/token_changes"
NOTICE_PREFIX: Final = "token_change_"
LAYOUT: Final = ("/delegation_token", TOKENS, CHANGES)
"""All nodes that exist before the first token; a parent before its children."""

_VERSION: Final = 3
_TOKEN_ID: Final = re.compile(r"[\w-]{1,100}", re.ASCII)


class DelegationToken(NamedTuple):
    """A token without its secret.

    owner, requester, renewers: principals, as `Type:name`
    expires_ms: the time until which it is valid, unless it is renewed
    max_ms: the latest time until which it can be renewed
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token is no longer valid."""
        return self.max_ms < now_ms or self.expires_ms < now_ms

    def is_owner_or_renewer(self, principal: str) -> bool:
        """Return whether a principal may renew the token."""
        return principal == self.owner or principal in self.renewers

    def is_described_for(self, principal: str) -> bool:
        """Return whether a principal is the owner, the requester or a renewer of the token."""
        return principal == self.requester or self.is_owner_or_renewer(principal)


def token_path(token_id: str) -> str:
    """Return the path of a token's node."""
    return f"{TOKENS}/{token_id}"


def encode_token(token: DelegationToken) -> bytes:
    """Encode the content of a token's node."""
    return znodes.encode(
        {
            "version": _VERSION,
            "owner": sanitize_name(token.owner),
            "tokenRequester": sanitize_name(token.requester),
            "renewers": list(map(sanitize_name, token.renewers)),
            "issueTimestamp": token.issued_ms,
            "maxTimestamp": token.max_ms,
            "expiryTimestamp": token.expires_ms,
            "tokenId": token.token_id,
        }
    )


def decode_token(data: bytes | None) -> DelegationToken:
    """Decode the content of a token's node. Raises ValueError, LookupError, TypeError, AttributeError."""
    value = znodes.decode(data)
    version = value["version"]
    if not 1 <= version <= _VERSION:
        raise ValueError(f"unsupported version of a token: {version!r}")
    owner = _decode_principal(value["owner"])
    return DelegationToken(
        _decode_id(value["tokenId"]),
        owner,
        _decode_principal(value["tokenRequester"]) if version >= 3 else owner,
        tuple(map(_decode_principal, value["renewers"])),
        int(value["issueTimestamp"]),
        int(value["maxTimestamp"]),
        int(value["expiryTimestamp"]),
    )


def _decode_principal(text: str) -> str:
    principal = desanitize_name(text)
    if principal.find(":") < 1:
        raise ValueError(f"not a principal: {principal!r}")
    return principal


def _decode_id(text: str) -> str:
    if _TOKEN_ID.fullmatch(text) is None:
        raise ValueError(f"not the id of a token: {text!r}")
    return text


class TokenCache:
    """All tokens, by id. The dictionary must not be changed by others.

    secret: `delegation.token.secret.key`
    """

    def __init__(self, store: MetadataStore, post: Post, pause: Pause, secret: bytes) -> None:
        self.tokens: dict[str, DelegationToken] = {}
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}
        self._store = store
        self._post = post
        self._pause = pause
        self._secret = secret
        self._notices = ChangeNotices(
            store, CHANGES, lambda node: _decode_id((node.data or b"").decode()), self._on_notices, logging.WARNING
        )

    async def start(self) -> None:
        """Create missing nodes, load all tokens and watch the notices; call it again in a new session.

        Raises MetadataStoreError.
        """
        await lay_out(self._store, LAYOUT)
        if self._store.is_shared:
            await self._notices.skip()
        found = await self._read(await get_children_if_any(self._store, TOKENS))
        removed: dict[str, DelegationToken | None] = dict.fromkeys(self.tokens.keys() - found.keys())
        self.put({**found, **removed})

    async def follow(self) -> None:
        """Read the tokens to which new notices point; call it again if it failed. Raises MetadataStoreError."""
        changed = await self._notices.read()
        self.put({**dict.fromkeys(changed), **await self._read(changed)})
        self._notices.finish()

    def put(self, tokens: Mapping[str, DelegationToken | None]) -> None:
        """Replace tokens, or remove those that are None."""
        for token_id, token in tokens.items():
            if token is not None:
                self.tokens[token_id] = token
                self._ids[self.compute_hmac(token_id)] = token_id
            elif self.tokens.pop(token_id, None) is not None:
                del self._ids[self._hmacs.pop(token_id)]

    def compute_hmac(self, token_id: str) -> bytes:
        """Return the HMAC of a token, which is its secret."""
        known = self._hmacs.get(token_id)
        if known is None:
            known = self._hmacs[token_id] = hmac.digest(self._secret, token_id.encode(), "sha512")
        return known

    def find_by_hmac(self, found_hmac: bytes) -> DelegationToken | None:
        """Return the token with an HMAC; None if there is none."""
        token_id = self._ids.get(found_hmac)
        return None if token_id is None else self.tokens[token_id]

    def _on_notices(self, event: WatchEvent) -> None:
        self._post("delegation tokens changed", self.follow)

    async def _read(self, token_ids: list[str]) -> dict[str, DelegationToken | None]:
        """Return those of the tokens that exist; one that cannot be decoded is handled as by `read_nodes`."""
        paths = {token_path(token_id): token_id for token_id in token_ids}
        found = await read_nodes(self._store, dict.fromkeys(paths, _decode), self._pause)
        return {paths[path]: token for path, token in found.items()}


def _decode(node: Node) -> DelegationToken:
    return decode_token(node.data)
