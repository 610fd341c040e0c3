"""Properties of delegation tokens (KIP-48)."""

from odradek.properties import PropertySet, long, password


class DelegationTokenProperties(PropertySet):
    """Delegation tokens."""

    delegation_token_secret_key = password(
        "delegation.token.secret.key",
        doc="Secret from which the brokers of a cluster derive the secrets of tokens, the same for all; without it "
        "there are no tokens.",
    )
    delegation_token_master_key = password(
        "delegation.token.master.key",
        doc="Former name of delegation.token.secret.key, which takes precedence.",
    )
    delegation_token_max_lifetime_ms = long(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        minimum=1,
        doc="Time after which a token can no longer be renewed.",
    )
    delegation_token_expiry_time_ms = long(
        "delegation.token.expiry.time.ms",
        86_400_000,
        minimum=1,
        doc="Time for which a token is valid until it is renewed.",
    )
    delegation_token_expiry_check_interval_ms = long(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        minimum=1,
        doc="Time between two deletions of expired tokens. They are refused as soon as they expire.",
    )

    @property
    def token_secret(self) -> bytes:
        """The secret of delegation tokens; empty if there are none."""
        secret = self.delegation_token_secret_key
        if secret is None:
            secret = self.delegation_token_master_key
        return (secret or "").encode()
