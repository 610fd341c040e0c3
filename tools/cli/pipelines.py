"""The command `odradek pipeline`: another program, which replaces this one."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the pipelines' program, which the command line does not import."""
    os.execv(sys.executable, [sys.executable, "-m", "odradek.spark_it", *arguments[1:]])
