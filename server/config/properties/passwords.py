"""Properties of the encryption of dynamically configured passwords (KIP-226)."""

from odradek.properties import PropertySet, integer, password, string
from odradek.server.security.password_encoder import (
    CBC,
    DEFAULT_KEY_FACTORY,
    GCM,
    KEY_FACTORIES,
    KEY_LENGTHS,
    MAX_ITERATIONS,
    EncoderSettings,
)


class PasswordProperties(PropertySet):
    """Encryption of dynamically configured passwords in the metadata store."""

    password_encoder_secret = password(
        "password.encoder.secret",
        doc="Secret with which dynamically configured passwords are encrypted; without it they are refused.",
    )
    password_encoder_old_secret = password(
        "password.encoder.old.secret",
        doc="Last secret, after password.encoder.secret has been changed; a start encrypts the passwords again.",
    )
    password_encoder_keyfactory_algorithm = string(
        "password.encoder.keyfactory.algorithm",
        None,
        choices=tuple(KEY_FACTORIES),
        doc=f"Derivation of the key from the secret; by default {DEFAULT_KEY_FACTORY}.",
    )
    password_encoder_cipher_algorithm = string(
        "password.encoder.cipher.algorithm",
        CBC,
        choices=(CBC, GCM),
        doc="Encryption of passwords.",
    )
    password_encoder_key_length = integer(
        "password.encoder.key.length",
        128,
        check=lambda bits: bits in KEY_LENGTHS,
        note="128, 192 or 256",
        doc="Length of the key in bits.",
    )
    password_encoder_iterations = integer(
        "password.encoder.iterations",
        4096,
        minimum=1024,
        maximum=MAX_ITERATIONS,
        doc="Iterations of the derivation of the key; 4096 take some 2 ms.",
    )

    @property
    def password_encoder_settings(self) -> EncoderSettings:
        """The encryption of dynamically configured passwords."""
        return EncoderSettings(
            self.password_encoder_secret,
            self.password_encoder_old_secret,
            self.password_encoder_keyfactory_algorithm or DEFAULT_KEY_FACTORY,
            self.password_encoder_cipher_algorithm,
            self.password_encoder_key_length,
            self.password_encoder_iterations,
        )
