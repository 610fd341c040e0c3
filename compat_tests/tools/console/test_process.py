"""`odradek console` as a process."""

import re
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from compat_tests import limits


@pytest.fixture
def interruptible():
    """A shell lets its background jobs, which tests may be, ignore SIGINT, and their children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_process_serves_until_it_is_interrupted(broker):
    command = [sys.executable, "-m", "odradek", "console", "--listen", "127.0.0.1:0"]
    command += ["--bootstrap-server", broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"the console is at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
            assert found, line
            with urlopen(found[1], timeout=limits.CONDITION_S) as response:
                assert b"<h1>Cluster</h1>" in response.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(limits.CONDITION_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
