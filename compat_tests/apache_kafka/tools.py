"""Apache Kafka's command line tools, run in one JVM or each as its own process.

run(TOPICS, "--bootstrap-server", server, "--list").stdout
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from compat_tests import limits, processes
from compat_tests.apache_kafka import classes
from compat_tests.apache_kafka.broker import QUICK_JVM
from compat_tests.apache_kafka.jars import java, kafka_classpath
from compat_tests.apache_kafka.tool_server import ToolServer, ToolTimeoutError

ACLS = "org.apache.kafka.tools.AclCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
BROKER_API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
TRANSACTIONAL_MESSAGE_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
METADATA_QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
DELEGATION_TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"

HEAP = "256m"

# Errors only, on the error stream, so that they are never mixed with a tool's output.
LOGGING = Path(__file__).parent / "tools-log4j2.properties"


class ToolError(AssertionError):
    """A tool ended with an error or not in time; the message contains its whole output."""


class ToolResult(NamedTuple):
    """Exit code and output of a tool."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of the output that are not empty."""
        return [line for line in self.stdout.splitlines() if line.strip()]


def command(
    tool: str,
    arguments: Sequence[str],
    *,
    heap: str = "256m",
    jvm_options: Sequence[str] = QUICK_JVM,
    classpath: str | None = None,
) -> list[str]:
    """Return the command line that runs a tool class, by default one of those in Kafka's class path."""
    has_archive = classpath is None and tuple(jvm_options) == QUICK_JVM
    options = [*jvm_options, *(_class_archive() if has_archive else ())]
    start = [java(), f"-Xmx{heap}", *options, f"-Dlog4j2.configurationFile={LOGGING}"]
    return [*start, "-cp", classpath or kafka_classpath(), tool, *arguments]


def run(
    tool: str,
    *arguments: str,
    stdin: str = "",
    timeout: float = limits.TOOL_S,
    check: bool = True,
    heap: str = HEAP,
    jvm_options: Sequence[str] = QUICK_JVM,
    environment: Mapping[str, str] | None = None,
) -> ToolResult:
    """Run a tool to its end. Raises ToolError if it takes more than `timeout` seconds or, with `check`, fails."""
    result = None
    is_usual = environment is None and heap == HEAP and tuple(jvm_options) == QUICK_JVM
    if is_usual and tool not in _USE_THE_END_OF_THE_JVM:
        result = _run_in_server(tool, arguments, stdin, timeout)
    if result is None:
        result = _run_alone(
            command(tool, arguments, heap=heap, jvm_options=jvm_options), tool, arguments, stdin, timeout, environment
        )
    if check and result.returncode != 0:
        text = f"ended with {result.returncode}"
        raise ToolError(_report(text, tool, arguments, result.stdout, result.stderr))
    return result


def _run_in_server(tool: str, arguments: Sequence[str], stdin: str, timeout: float) -> ToolResult | None:
    try:
        found = _SERVER.run(tool, arguments, stdin, timeout)
    except ToolTimeoutError:
        raise ToolError(_report(f"did not end in {timeout} s", tool, arguments, "", "")) from None
    return None if found is None else ToolResult(*found)


def _run_alone(
    line: Sequence[str],
    tool: str,
    arguments: Sequence[str],
    stdin: str,
    timeout: float,
    environment: Mapping[str, str] | None,
) -> ToolResult:
    process = processes.start(
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise ToolError(_report(f"did not end in {timeout} s", tool, arguments, stdout, stderr)) from None
    except BaseException:
        process.kill()
        process.wait()
        raise
    return ToolResult(process.returncode, stdout, stderr)


def _report(what: str, tool: str, arguments: Sequence[str], stdout: str, stderr: str) -> str:
    name = tool.rpartition(".")[2]
    return f"{name} {what}: {' '.join(arguments)}\n--- output\n{stdout}\n--- errors\n{stderr}"


def _class_archive() -> tuple[str, ...]:
    return classes.options("tools", kafka_classpath(), _load_classes)


def _load_classes(options: tuple[str, ...]) -> None:
    # There is no listener: the producer loads all its classes, fails to send the record and ends.
    nowhere = ["--bootstrap-server", "127.0.0.1:1", "--topic", "none", "--max-block-ms", "200"]
    line = command(CONSOLE_PRODUCER, nowhere, jvm_options=(*QUICK_JVM, *options))
    subprocess.run(line, input=b"record\n", capture_output=True, timeout=limits.TOOL_S)


_USE_THE_END_OF_THE_JVM = (VERIFIABLE_PRODUCER, VERIFIABLE_CONSUMER)
"""Tools that flush in a hook of the JVM, which no other tool can run for them."""

_SERVER = ToolServer(lambda: [f"-Xmx{HEAP}", *QUICK_JVM, *_class_archive(), f"-Dlog4j2.configurationFile={LOGGING}"])


class RunningTool:
    """A tool that runs until it is terminated, such as a consumer; a context manager.

    Its output goes to a file, so that it never blocks and is complete afterwards.
    """

    def __init__(
        self, output: Path, tool: str, *arguments: str, heap: str = "256m", classpath: str | None = None
    ) -> None:
        self._output = output
        self._name = tool.rpartition(".")[2]
        self._command = command(tool, arguments, heap=heap, classpath=classpath)

    def __enter__(self) -> Self:
        with open(self._output, "wb") as output:
            self.process = processes.start(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = limits.TOOL_S) -> str:
        """Return the output once it contains `text`. Raises ToolError if it does not in time."""
        give_up_at = time.monotonic() + timeout
        while text not in (output := self.output()):
            if self.process.poll() is not None and text not in self.output():
                raise ToolError(f"{self._name} ended without printing {text!r}:\n{self.output()}")
            if time.monotonic() > give_up_at:
                raise ToolError(f"{self._name} did not print {text!r} in {timeout} s:\n{output}")
            time.sleep(0.05)
        return output

    def terminate(self, timeout: float = limits.TOOL_S) -> str:
        """Terminate the tool (SIGTERM), wait for its end and return its whole output."""
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ToolError(f"{self._name} did not end on SIGTERM:\n{self.output()}") from None
        return self.output()
