"""Credentials for users of SCRAM that do not exist, which no attempt can tell from real ones.

Apache Kafka fails for such a user after the first message, and so shows that it does not exist.
"""

import hashlib
import hmac
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from odradek.replication.metadata.entity_configs import USERS
from odradek.replication.metadata.image import Configs
from odradek.server.security.sasl.scram_credentials import (
    DEFAULT_ITERATIONS,
    SCRAM_MECHANISMS,
    CredentialForm,
    ScramCredential,
    ScramMechanism,
    find_form,
    make_random_text,
)

_POINT_BITS: Final = 64


class UnknownUsers:
    """Makes the salt, keys and iterations of users that do not exist, from their names.

    A name has the same salt after a restart and at each broker of the cluster, as a real user has: asking twice, or two
    brokers, shows nothing. So the secret must be kept, and shared by the brokers; and it must be random, because
    a client that derives the salt of a name, for example from the id of the cluster, compares it with the received one.

    The forms, which are numbers of iterations and lengths of salts, have the same frequencies as those of the real
    users: if all users had 8192 iterations, any other number would show that a user does not exist. A change of the
    users may change the form of a few names.

    secret: of the cluster (`scram_secret.load_secret`)
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        # The form of each user's credential, by mechanism and path.
        self._forms: dict[str, dict[str, CredentialForm]] = {name: {} for name in SCRAM_MECHANISMS}
        self._counts: dict[str, Counter[CredentialForm]] = {name: Counter() for name in SCRAM_MECHANISMS}
        # The forms, and the sums of their counts, by mechanism; empty after a change.
        self._bounds: dict[str, tuple[list[CredentialForm], list[int]]] = {}

    def update(self, changed: Mapping[str, Configs]) -> None:
        """Count the forms of the credentials of changed users (`EntityConfigs.listeners`)."""
        self._bounds.clear()
        for path, configs in changed.items():
            for name, forms in self._forms.items():
                former, text = forms.pop(path, None), configs.get(name)
                if former is not None:
                    self._counts[name][former] -= 1
                if text is not None and _is_user(path):
                    form = forms[path] = find_form(text)
                    self._counts[name][form] += 1

    def make_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return the credential of a user that has none; no password matches it."""
        derived = self._derive(mechanism, user, is_token=False)
        key, form = mechanism.hmac(self.secret, derived), self._choose_form(mechanism, user)
        salt = hashlib.shake_256(derived).digest(form.salt_bytes) if form.salt_bytes else _make_salt(derived)
        return ScramCredential(salt, key, key, form.iterations)

    def make_token_credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """Return the credential of an unknown token; no password matches it."""
        key = mechanism.hmac(self.secret, self._derive(mechanism, token_id, is_token=True))
        return ScramCredential(self.make_token_salt(mechanism, token_id), key, key, DEFAULT_ITERATIONS)

    def make_token_salt(self, mechanism: ScramMechanism, token_id: str) -> bytes:
        """Return the salt of a token, whether it exists or not.

        It is another salt than that of the user of the same name, as if both existed: a user whose salt differs from
        that of the token would else be known to exist.
        """
        return _make_salt(self._derive(mechanism, token_id, is_token=True))

    def _derive(self, mechanism: ScramMechanism, name: str, *, is_token: bool) -> bytes:
        return mechanism.hmac(self.secret, b"%d,%s" % (is_token, name.encode()))

    def _choose_form(self, mechanism: ScramMechanism, user: str) -> CredentialForm:
        bounds = self._bounds.get(mechanism.name)
        if bounds is None:
            counts = sorted((+self._counts[mechanism.name]).items()) or [(CredentialForm(), 1)]
            bounds = [form for form, _ in counts], list(accumulate(count for _, count in counts))
            self._bounds[mechanism.name] = bounds
        forms, ends = bounds
        # The same point for all mechanisms, because the credentials of a real user are mostly made by the same client.
        digest = hmac.digest(self.secret, b"form,%s" % user.encode(), "sha256")
        point = int.from_bytes(digest, "big") >> (8 * len(digest) - _POINT_BITS)
        return forms[bisect_right(ends, point * ends[-1] >> _POINT_BITS)]


def _is_user(path: str) -> bool:
    kind, *names = path.split("/")
    return kind == USERS and len(names) == 1


def _make_salt(derived: bytes) -> bytes:
    return make_random_text(lambda bits: int.from_bytes(derived, "big") % (1 << bits)).encode()
