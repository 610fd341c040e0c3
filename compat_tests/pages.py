"""The commands of documentation pages, run as written; only addresses are replaced."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

import odradek
from compat_tests import limits

_START = """rm -f broker.log
{} > broker.log 2>&1 & echo $! > broker.pid
until grep -s 'odradek started' broker.log || ! kill -0 $(cat broker.pid); do sleep 0.1; done
"""
_STOP = "kill $(cat broker.pid); while kill -0 $(cat broker.pid) 2> /dev/null; do sleep 0.1; done"
COMMANDS = {
    "odradek": [sys.executable, "-m", "odradek"],
    "python": [sys.executable],
}


def read_page(name: str) -> str:
    """Return the text of a page in docs/."""
    return (Path(odradek.__file__).parent.parent / "docs" / name).read_text("utf-8")


def read_blocks(name: str) -> list[str]:
    """Return the blocks of shell commands in a page."""
    return re.findall(r"```sh\n(.*?)```", read_page(name), re.DOTALL)


def read_examples(name: str) -> list[str]:
    """Return the indented blocks in a page."""
    return [textwrap.dedent(block) for block in re.findall(r"(?<=\n\n)(?:    .*\n)+", read_page(name))]


def set_default_cluster(directory: Path, monkeypatch: pytest.MonkeyPatch, bootstrap_servers: str) -> None:
    """Let commands without --bootstrap-server use `bootstrap_servers`, by a profile file in `directory`."""
    profiles = directory / "config" / "odradek" / "profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text(f'[default]\nbootstrap.servers = "{bootstrap_servers}"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / "config"))
    monkeypatch.delenv("ODRADEK_PROFILE", raising=False)


class PageShell:
    """Runs blocks of a page in `directory`, with the page's commands in PATH.

    addresses: replacements of parts of addresses in the blocks
    log_pattern: of the files whose ends a failure shows
    """

    def __init__(self, directory: Path, addresses: Mapping[str, str], log_pattern: str) -> None:
        self.directory = directory
        self._addresses = addresses
        self._log_pattern = log_pattern
        commands = directory / "bin"
        commands.mkdir()
        for name, command in COMMANDS.items():
            (commands / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            (commands / name).chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}

    def run(self, block: str) -> str:
        """Run a block, which ends at the first command that fails; return its output."""
        text = block
        for written, used in self._addresses.items():
            text = text.replace(written, used)
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limits.COMMANDS_S,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{self._logs()}"
        return done.stdout

    def start_broker(self, commands: str) -> None:
        """Run commands of which the last one starts a broker, until it has started. Its log is in broker.log."""
        assert "odradek started" in self.run(_START.format(commands.strip()))

    def stop_broker(self) -> None:
        """Stop the broker, and wait for its end."""
        self.run(_STOP)

    def kill(self, name: str) -> None:
        """Kill the process whose id is in a file, if there is one."""
        if (self.directory / name).exists():
            subprocess.run(["kill", "-KILL", (self.directory / name).read_text().strip()], check=False)

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.directory.glob(self._log_pattern)))
