"""The result of a check."""

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """The state that a check found, from the worst on.

    PROBLEM: clients are affected, or will be
    WARNING: a risk, or a setting that may be intended
    UNCHECKED: the check could not be made
    OK: nothing to do
    """

    PROBLEM = "problem"
    WARNING = "warning"
    UNCHECKED = "unchecked"
    OK = "ok"


class Finding(NamedTuple):
    """A fact that a check read.

    subject: `cluster`, `broker 1`, `machine of broker 1`
    fix: what to do; empty if nothing is to be done
    """

    state: State
    subject: str
    check: str
    fact: str
    fix: str = ""


_ORDER: Final = {state: position for position, state in enumerate(State)}


def sort_findings(findings: list[Finding]) -> list[Finding]:
    """Return findings from the worst on, otherwise in the given order."""
    return sorted(findings, key=lambda finding: _ORDER[finding.state])


def name_broker(broker: int) -> str:
    """Return the subject of a broker."""
    return f"broker {broker}"


def format_bytes(count: int) -> str:
    """Return a size for people."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def judge_free(free: int, total: int, problem_share: float, warning_share: float) -> State:
    """Return the state of a resource of which `free` is left."""
    if free < total * problem_share:
        return State.PROBLEM
    return State.WARNING if free < total * warning_share else State.OK


def list_some(names: list[str], most: int = 5) -> str:
    """Return names in one line, the first ones if there are many."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
