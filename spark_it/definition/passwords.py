"""Passwords within addresses, which neither people nor files of the state get to see."""

import re
from typing import Final

_PASSWORD: Final = re.compile(r"(?i)((?:password|passwd|pwd|secret|token)\s*=)\s*(?:\{(?:[^}]|\}\})*\}|[^&;,\s]*)")
_USER_INFO: Final = re.compile(r"(//[^/@:\s]*:|jdbc:oracle:\w+:[^/@\s]*/)[^/@\s]*@")


def without_passwords(text: str) -> str:
    """An address, or a message that may hold one, as people may see it."""
    return _USER_INFO.sub(r"\1[hidden]@", _PASSWORD.sub(r"\1[hidden]", text))
