"""Credentials for users of SCRAM that do not exist, which no attempt can tell from real ones.

Apache Kafka fails for such a user after the first message, and so shows that it does not exist.
"""

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
    ScramCredential,
    ScramMechanism,
    find_iterations,
    make_random_text,
)

_POINT_BITS: Final = 64


class UnknownUsers:
    """Makes the salt, keys and iterations of users that do not exist, from their names.

    A name has the same salt after a restart and at each broker of the cluster, as a real user has: asking twice, or two
    brokers, shows nothing. So the secret must be kept, and shared by the brokers; and it must be random, because
    whoever can derive the salt of a name, for example from the id of the cluster, can compare it with the received one.

    The numbers of iterations have the same frequencies as those of the real users: if all users had 8192, any other
    number would show that a user does not exist. A change of the users may change the number of a few names.

    secret: of the cluster (`scram_secret.load_secret`)
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        # The iterations of each user with a credential, by mechanism and path.
        self._iterations: dict[str, dict[str, int]] = {name: {} for name in SCRAM_MECHANISMS}
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in SCRAM_MECHANISMS}

    def update(self, changed: Mapping[str, Configs]) -> None:
        """Count the iterations of changed users (`EntityConfigs.listeners`)."""
        for path, configs in changed.items():
            for name, iterations_of in self._iterations.items():
                former, text = iterations_of.pop(path, None), configs.get(name)
                if former is not None:
                    self._counts[name][former] -= 1
                if text is not None and _is_user(path):
                    iterations = iterations_of[path] = find_iterations(text)
                    self._counts[name][iterations] += 1

    def make_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return the credential of a user that has none; no password matches it."""
        derived = self._derive(mechanism, user, is_token=False)
        key = mechanism.hmac(self.secret, derived)
        point = int.from_bytes(key, "big") >> (8 * len(key) - _POINT_BITS)
        return ScramCredential(_make_salt(derived), key, key, self._choose_iterations(mechanism, point))

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

    def _choose_iterations(self, mechanism: ScramMechanism, point: int) -> int:
        counts = sorted((+self._counts[mechanism.name]).items())
        if not counts:
            return DEFAULT_ITERATIONS
        bounds = list(accumulate(count for _, count in counts))
        return counts[bisect_right(bounds, point * bounds[-1] >> _POINT_BITS)][0]


def _is_user(path: str) -> bool:
    kind, *names = path.split("/")
    return kind == USERS and len(names) == 1


def _make_salt(derived: bytes) -> bytes:
    return make_random_text(lambda bits: int.from_bytes(derived, "big") % (1 << bits)).encode()
