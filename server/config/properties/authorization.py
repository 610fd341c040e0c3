"""Properties of authorization."""

from typing import Final

from odradek.properties import PropertyError, PropertySet, boolean, string
from odradek.server.security.principal import parse_principal

AUTHORIZER_NAMES: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Names of the built-in authorizer: those of Kafka's authorizers, with KRaft and with ZooKeeper."""


class AuthorizationProperties(PropertySet):
    """Authorization."""

    authorizer_class_name = string(
        "authorizer.class.name",
        "",
        check=lambda name: name in ("", *AUTHORIZER_NAMES),
        note=" or ".join(AUTHORIZER_NAMES),
        doc="Authorizer: a name of one of Kafka's, both of which name the built-in one; without it every client may "
        "perform every operation.",
    )
    super_users = string(
        "super.users",
        "",
        doc="Principals that may perform every operation, separated by semicolons, such as User:admin;User:CN=broker.",
    )
    allow_everyone_if_no_acl_found = boolean(
        "allow.everyone.if.no.acl.found",
        False,
        doc="Allow every operation on resources to which no ACL applies.",
    )


def parse_super_users(text: str) -> tuple[str, ...]:
    """Return the principals in `super.users`, as `Type:name`. Raises PropertyError."""
    users = tuple(filter(None, map(str.strip, text.split(";"))))
    for user in users:
        try:
            parse_principal(user)
        except ValueError as error:
            raise PropertyError("super.users", text, str(error)) from None
    return users
