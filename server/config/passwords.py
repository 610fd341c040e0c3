"""Properties of the encryption of dynamically configured passwords (KIP-226)."""

from odradek.properties import PropertySet, integer, password, string

CIPHERS = ("AES/CBC/PKCS5Padding", "AES/GCM/NoPadding")
KEY_FACTORIES = tuple(f"PBKDF2WithHmacSHA{size}" for size in (1, 224, 256, 384, 512))
KEY_LENGTHS = (128, 192, 256)


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
        choices=KEY_FACTORIES,
        doc="Derivation of the key from the secret; by default PBKDF2WithHmacSHA512.",
    )
    password_encoder_cipher_algorithm = string(
        "password.encoder.cipher.algorithm",
        "AES/CBC/PKCS5Padding",
        choices=CIPHERS,
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
        maximum=10_000_000,
        doc="Iterations of the derivation of the key; 4096 take some 2 ms.",
    )
