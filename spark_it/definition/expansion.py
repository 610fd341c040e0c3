"""Expansion of `${NAME}` and `${NAME:-default}` in the strings of a pipeline file; `$${` is an escaped `${`."""

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-((?:[^}\\]|\\.)*))?\})?")


class ExpansionError(ValueError):
    """A variable is not set and has no default, or a `${` has no valid variable name."""


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace the variables in a text. As in a shell, the default also replaces an empty variable.

    Raises ExpansionError.
    """

    def replacement(match: re.Match[str]) -> str:
        name, default = match.groups()
        if match.group() == "$${":
            return "${"
        if name is None:
            raise ExpansionError(
                "invalid variable after ${; write ${NAME} or ${NAME:-default}, or $${ for a literal ${"
            )
        value = environment.get(name, "")
        if value or (default is None and name in environment):
            return value
        if default is None:
            raise ExpansionError(
                f"environment variable {name} is not set; set it, or write a default as in ${{{name}:-...}}"
            )
        return re.sub(r"\\([}\\])", r"\1", default)

    return _VARIABLE.sub(replacement, text)
