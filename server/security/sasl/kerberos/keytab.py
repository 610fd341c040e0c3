"""Keytabs: files with the keys of principals."""

import os
import re


class KerberosError(ValueError):
    """The broker's Kerberos credential cannot be used. The message is one line."""


def find_keytab(option: str) -> str:
    """Return the name of a keytab for the library, given the option `keyTab`. Raises KerberosError."""
    path = re.sub("^file:", "", option, flags=re.IGNORECASE)
    # The library reads it in the reactor thread, which a pipe would block. A client may have named the file.
    if os.path.exists(path) and not os.path.isfile(path):
        raise KerberosError(f"the keytab {path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise KerberosError(f"the keytab {path} cannot be read")
    return f"FILE:{path}"
