"""Applications of Apache Kafka, each as its own process: Kafka Streams, Connect and MirrorMaker 2."""

from collections.abc import Mapping
from pathlib import Path

from compat_tests.apache_kafka.jars import applications_classpath
from compat_tests.apache_kafka.tools import RunningTool

WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
WORD_COUNT_INPUT, WORD_COUNT_OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"


def application(directory: Path, name: str, main: str, properties: Mapping[str, str]) -> RunningTool:
    """Return a process of a main class that reads a file of properties; `directory` has that file and its output."""
    file = directory / f"{name}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return RunningTool(directory / f"{name}.out", main, str(file), classpath=applications_classpath())
