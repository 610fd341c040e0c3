"""SCRAM credentials of delegation tokens: the user name is the token's id, the password its HMAC in base64.

Source: KIP-48; Kafka's DelegationTokenManager and ScramServerCallbackHandler. A credential takes some 2 ms, because it
has the iterations that clients require, so that it is made when its token is first used.
"""

import base64
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from odradek.server.security.principal import parse_principal
from odradek.server.security.sasl.scram_credentials import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    make_credential,
)

MAX_CREDENTIALS: Final = 10_000
"""Number of credentials that are kept, those that were used last."""


class TokenSecret(NamedTuple):
    """A delegation token and its HMAC. `owner`: the principal, as `Type:name`."""

    owner: str
    expires_ms: int
    hmac: bytes

    def __repr__(self) -> str:
        return f"TokenSecret({self.owner})"


FindToken = Callable[[str], TokenSecret | None]
"""Returns a valid delegation token by its id; None if there is none."""


class TokenCredential(NamedTuple):
    """The credential of a token. `owner`: the name of the user whom it authenticates."""

    credential: ScramCredential
    owner: str
    expires_ms: int


class TokenCredentials:
    """The credentials of all tokens for one mechanism."""

    def __init__(self, mechanism: ScramMechanism, find_token: FindToken, make_salt: Callable[[str], bytes]) -> None:
        self._mechanism = mechanism
        self._find_token = find_token
        self._make_salt = make_salt
        self._made: OrderedDict[str, ScramCredential] = OrderedDict()

    def find(self, token_id: str) -> TokenCredential | None:
        """Return the credential of a token; None if there is no such token, or if it has expired."""
        token = self._find_token(token_id)
        if token is None:
            self._made.pop(token_id, None)
            return None
        credential = self._made.get(token_id)
        if credential is None:
            credential = self._made[token_id] = self._make(token_id, token)
            if len(self._made) > MAX_CREDENTIALS:
                self._made.popitem(last=False)
        self._made.move_to_end(token_id)
        return TokenCredential(credential, parse_principal(token.owner).name, token.expires_ms)

    def _make(self, token_id: str, token: TokenSecret) -> ScramCredential:
        salt, password = self._make_salt(token_id), base64.b64encode(token.hmac).decode()
        salted = self._mechanism.salt_password(password, salt, MIN_ITERATIONS)
        return make_credential(self._mechanism, salt, salted, MIN_ITERATIONS)
