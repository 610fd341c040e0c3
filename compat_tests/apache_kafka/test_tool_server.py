"""Tools that share a JVM end, print and read as in a process of their own."""

import pytest

from compat_tests.apache_kafka import tools
from odradek.testing import OdradekBroker

pytestmark = pytest.mark.usefixtures("kafka_jars")


def alone(tool: str, *arguments: str) -> tools.ToolResult:
    """Run a tool in a process of its own: that is required for another size of the heap."""
    return tools.run(tool, *arguments, check=False, heap="255m")


def test_results_are_those_of_a_process_of_its_own() -> None:
    with OdradekBroker() as broker:
        at = ("--bootstrap-server", broker.bootstrap_servers)
        tools.run(tools.TOPICS, *at, "--create", "--topic", "greetings")
        tools.run(tools.CONSOLE_PRODUCER, *at, "--topic", "greetings", stdin="h\u00e4\nb\n")
        read = ("--topic", "greetings", "--from-beginning", "--max-messages", "2")
        for tool, arguments in (
            (tools.TOPICS, (*at, "--list")),
            (tools.TOPICS, ()),
            (tools.TOPICS, (*at, "--describe", "--topic", "absent")),
            (tools.CONSOLE_CONSUMER, (*at, *read)),
            (tools.ACLS, ("--add",)),
        ):
            found = tools.run(tool, *arguments, check=False)
            own = alone(tool, *arguments)
            # Errors contain times and stack traces.
            assert (found.returncode, found.stdout, len(found.lines)) == (own.returncode, own.stdout, len(own.lines))
            assert bool(found.stderr) == bool(own.stderr)


def test_a_tool_that_does_not_end_is_reported_and_the_next_one_runs() -> None:
    with OdradekBroker() as broker:
        at = ("--bootstrap-server", broker.bootstrap_servers)
        tools.run(tools.TOPICS, *at, "--create", "--topic", "empty")
        with pytest.raises(tools.ToolError, match="did not end in 2 s"):
            tools.run(tools.CONSOLE_CONSUMER, *at, "--topic", "empty", timeout=2)
        assert "empty" in tools.run(tools.TOPICS, *at, "--list").lines
