"""Keytabs: files with the keys of principals."""

import os
import re


class KerberosError(ValueError):
    """The broker's Kerberos credential cannot be used. The message is one line."""


def find_keytab(option: str) -> str:
    """Return the name of a keytab for the library, given the option `keyTab`. Raises KerberosError."""
    path = re.sub("^file:", "", option, flags=re.IGNORECASE)
    if not os.access(path, os.R_OK):
        raise KerberosError(f"the keytab {path} cannot be read")
    return f"FILE:{path}"
