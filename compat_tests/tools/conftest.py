"""Fixtures that run a command of Odradek or a tool of Kafka against the broker."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from compat_tests.apache_kafka.tools import ToolResult, run
from odradek.tools.cli.main import main


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[Any]:
        """Return the errors that were written as JSON."""
        return [json.loads(line)["error"] for line in self.err.splitlines()]


RunCommand = Callable[..., Done]
RunTool = Callable[..., ToolResult]


@pytest.fixture
def odradek(
    broker: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> RunCommand:
    """Run a command in this process, with --bootstrap-server added. It must end with `code`, unless that is None."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run_command(*arguments: str, code: int | None = 0) -> Done:
        capsys.readouterr()
        exit_code = main([*arguments, "--bootstrap-server", broker.bootstrap_servers])
        done = Done(exit_code, *capsys.readouterr())
        assert code in (None, done.code), done
        return done

    return run_command


@pytest.fixture
def tool(broker: Any) -> RunTool:
    """Run a tool of Kafka, with --bootstrap-server added."""

    def run_tool(name: str, *arguments: str, **options: Any) -> ToolResult:
        return run(name, "--bootstrap-server", broker.bootstrap_servers, *arguments, **options)

    return run_tool
