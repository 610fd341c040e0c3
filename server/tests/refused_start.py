"""The start of a broker process that is refused."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 60


def refuse_start(properties: Mapping[str, Any], log_level: str = "warning") -> str:
    """Start a broker, which ends with exit code 1 and one line in its log; return the line from its reason on."""
    overrides = [f"--override={name}={value}" for name, value in properties.items()]
    command = [sys.executable, "-m", "odradek", "start", "--log-level", log_level, *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (1, ""), done
    [line] = done.stdout.splitlines()
    assert " ERROR server.broker cannot start: " in line
    return line.partition("cannot start: ")[2]
