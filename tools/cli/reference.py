"""The list of commands in docs/cli.md, from their declarations.

python -m odradek.tools.cli.reference > list.md
"""

import sys
from collections.abc import Iterator
from importlib import import_module

import typer

from odradek.tools.cli.registry import COMMANDS


def format_reference() -> str:
    """Return a table of all commands in Markdown."""
    rows = ["| command | purpose |", "|---|---|"]
    for command in COMMANDS:
        if command.is_program:
            rows.append(f"| `{command.name}` | {command.help.rstrip('.')} |")
        else:
            application = import_module(command.module).commands.app
            rows += [f"| `{name}` | {purpose} |" for name, purpose in _iter_commands(command.name, application)]
    return "\n".join(rows) + "\n"


def _iter_commands(prefix: str, application: typer.Typer) -> Iterator[tuple[str, str]]:
    for one in application.registered_commands:
        if not one.hidden:
            # The only command of some groups has the name of the group, such as `odradek doctor`.
            name = prefix if one.name == application.info.name else f"{prefix} {one.name}"
            yield name, (one.short_help or "").rstrip(".").replace("|", "\\|")
    for group in application.registered_groups:
        assert group.typer_instance is not None
        yield from _iter_commands(f"{prefix} {group.name}", group.typer_instance)


if __name__ == "__main__":
    sys.stdout.write(format_reference())
