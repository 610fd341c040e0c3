"""Removal of passwords from addresses, for messages and state files."""

import re
from typing import Final

_PASSWORD: Final = re.compile(r"(?i)((?:password|passwd|pwd|secret|token)\s*=)\s*(?:\{(?:[^}]|\}\})*\}|[^&;,\s]*)")
_USER_INFO: Final = re.compile(r"(//[^/@:\s]*:|jdbc:oracle:\w+:[^/@\s]*/)[^/@\s]*@")


def hide_passwords(text: str) -> str:
    """Remove the passwords from an address, or from a message that may contain one."""
    return _USER_INFO.sub(r"\1[hidden]@", _PASSWORD.sub(r"\1[hidden]", text))
