"""Login modules, and users whose passwords are `<user>-secret`, for tests of SASL."""

import subprocess
import sys
from collections.abc import Iterable

from odradek.server.config.properties.sasl import LOGIN_MODULES

PLAIN_MODULE = LOGIN_MODULES["PLAIN"]
SCRAM_MODULE = LOGIN_MODULES["SCRAM-SHA-256"]


def add_user(user: str, *overrides: str, password: str | None = None) -> None:
    """Run `odradek user add` with these overrides of properties; the password is `<user>-secret` by default."""
    options = [part for override in overrides for part in ("--override", override)]
    command = [sys.executable, "-m", "odradek", "user", "add", user, *options]
    text = f"{user}-secret" if password is None else password
    result = subprocess.run(command, input=f"{text}\n", capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def add_users(users: Iterable[str], *overrides: str) -> None:
    """Add SCRAM credentials of several users."""
    for user in users:
        add_user(user, *overrides)
