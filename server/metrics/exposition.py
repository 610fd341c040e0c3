"""The Prometheus text format (0.0.4), written in steps."""

from collections.abc import Callable, Generator, Iterable
from typing import Final

from odradek.server.metrics.declaration import Family

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
SAMPLES_PER_STEP: Final = 256
"""Samples that are written in one step, which takes some 0.2 ms."""


def write_families(families: Iterable[Family | None], write: Callable[[bytes], object]) -> Generator[None, None, None]:
    """Write families, and yield after each step, and for each None, which collectors yield as a pause.

    A family may come in parts, one after the other.
    """
    lines: list[str] = []
    begun = ""
    for family in families:
        if family is None:
            yield
            continue
        metric, samples = family
        name = metric.name
        for labels, value in samples:
            if name != begun:
                # A family without samples has no lines.
                begun = name
                lines.append(f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n")
            lines.append(f"{name}{labels} {value}\n")
            if len(lines) >= SAMPLES_PER_STEP:
                write("".join(lines).encode())
                lines.clear()
                yield
    write("".join(lines).encode())
