"""kcat (an old librdkafka, from Debian) against the broker; runs where kcat is installed."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(
        shutil.which("kcat") is None, reason="kcat is not installed (Debian and Ubuntu: apt-get install kcat)"
    ),
    pytest.mark.side_by_side,
]


@pytest.fixture
def kcat(broker: Any) -> Callable[..., str]:
    """Return a function that runs kcat against the broker and returns its output."""

    def run(*arguments: str, stdin: str = "") -> str:
        command = ["kcat", "-b", broker.bootstrap_servers, *arguments]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=40)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_read_as_written(kcat, topic, codec):
    lines = [f"key{n}:value {n}" for n in range(300)]
    kcat("-P", "-t", topic, "-K:", "-H", "h=1", "-H", "h=2", "-z", codec, stdin="\n".join(lines) + "\n")
    reported = [json.loads(line) for line in kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J").splitlines()]
    assert [(r["offset"], f"{r['key']}:{r['payload']}") for r in reported] == list(enumerate(lines))
    assert {tuple(r["headers"]) for r in reported} == {("h", "1", "h", "2")}


def test_null_values_and_the_tail(kcat, topic):
    kcat("-P", "-t", topic, "-K:", "-Z", stdin="a:1\nb:\nc:3\n")
    reported = kcat("-C", "-t", topic, "-o", "-2", "-e", "-q", "-f", "%o %k %S %s\n")
    assert reported.splitlines() == ["1 b -1 ", "2 c 1 3"]


def test_metadata_and_offsets_by_time(kcat, topic, broker):
    kcat("-P", "-t", topic, stdin="x\ny\n")
    (reported,) = json.loads(kcat("-L", "-J", "-t", topic))["topics"]
    assert [(p["partition"], len(p["isrs"])) for p in reported["partitions"]] == [(0, 1)]
    assert kcat("-Q", "-t", f"{topic}:0:-1").split() == [topic, "[0]", "offset", "2"]
    assert kcat("-Q", "-t", f"{topic}:0:-2").split() == [topic, "[0]", "offset", "0"]
    an_hour_ago = int((time.time() - 3600) * 1000)
    assert kcat("-Q", "-t", f"{topic}:0:{an_hour_ago}").split() == [topic, "[0]", "offset", "0"]


def test_a_balanced_consumer_continues_where_it_stopped(kcat, topic, unique, broker):
    group = [
        "-X",
        "auto.offset.reset=earliest",
        "-X",
        "session.timeout.ms=6000",
        "-e",
        "-q",
        "-G",
        f"{unique}-group",
    ]
    kcat("-P", "-t", topic, stdin="1\n2\n3\n")
    assert kcat(*group, topic).split() == ["1", "2", "3"]
    kcat("-P", "-t", topic, stdin="4\n5\n")
    assert kcat(*group, topic).split() == ["4", "5"]


def test_idempotent_producer(kcat, topic):
    lines = "".join(f"{n}\n" for n in range(5000))
    kcat(
        "-P",
        "-t",
        topic,
        "-X",
        "enable.idempotence=true",
        "-X",
        "linger.ms=0",
        "-X",
        "batch.num.messages=50",
        stdin=lines,
    )
    assert kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q") == lines
