"""Regular expressions from clients, matched in time that grows with the text and no faster.

Python's own matching can be made to run for hours by a pattern of a dozen characters, and this broker has one thread.
Kafka uses RE2, which has no such patterns because it follows all ways at once (KIP-848, KIP-1152); so does this. The
syntax is what Python and RE2 have in common: no references back, no looking around; classes like `\\d` are ASCII.
"""

import re
import string
from collections.abc import Callable
from typing import Any, Final

from odradek.coordinator.steps import Steps

MAX_STEPS: Final = 1_500
"""Longest pattern once its repetitions are written out."""
MAX_PATTERN_CHARACTERS: Final = 4_096
"""Longest text of a pattern: parsing it takes a few milliseconds."""

_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": frozenset(string.digits).__contains__,
    "CATEGORY_SPACE": frozenset(" \t\n\r\f").__contains__,
    "CATEGORY_WORD": _WORD.__contains__,
}

Test = Callable[[str], bool]


class LinearPattern:
    """A compiled pattern. Raises ValueError for what is no pattern, or none that can be matched so."""

    def __init__(self, pattern: str) -> None:
        from re import _parser  # type: ignore[attr-defined]  # only here: few brokers are ever asked

        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError("pattern is too long")
        try:
            parsed = _parser.parse(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from error
        self._steps: list[tuple[str, Any, int]] = []
        """What to do, its argument and where to go on; the end of the text is to be reached at the last one."""
        self._sequences = 0
        try:
            self._sequence(parsed, parsed.state.flags)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        self._add("end", None, 0)

    # -- compiling -------------------------------------------------------------------------------------------------

    def _add(self, what: str, argument: Any, target: int | None = None) -> int:
        if len(self._steps) >= MAX_STEPS:
            raise ValueError("pattern is too long")
        self._steps.append((what, argument, len(self._steps) + 1 if target is None else target))
        return len(self._steps) - 1

    def _fork(self) -> int:
        return self._add("fork", None)

    def _lead(self, fork: int, to: int) -> None:
        """The other way of a fork, or the only one of a jump."""
        what, _, target = self._steps[fork]
        self._steps[fork] = (what, to, target)

    def _sequence(self, nodes: Any, flags: int) -> None:
        # Repetitions of what is empty add no step.
        self._sequences += 1
        if self._sequences > MAX_STEPS:
            raise ValueError("pattern is too long")
        for kind, argument in nodes:
            self._node(str(kind), argument, flags)

    def _node(self, kind: str, argument: Any, flags: int) -> None:
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            self._add("char", _test(kind, argument, flags))
        elif kind == "AT":
            self._add("at", (str(argument), bool(flags & re.MULTILINE)))
        elif kind == "SUBPATTERN":
            _, added, removed, inner = argument
            self._sequence(inner, (flags | added) & ~removed)
        elif kind == "BRANCH":
            self._branch(argument[1], flags)
        elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = argument
            self._repeat(least, most, inner, flags)
        else:
            raise ValueError(f"{kind.lower()} is not supported")

    def _branch(self, branches: list[Any], flags: int) -> None:
        jumps = []
        for branch in branches[:-1]:
            fork = self._fork()
            self._sequence(branch, flags)
            jumps.append(self._add("jump", None))
            self._lead(fork, len(self._steps))
        self._sequence(branches[-1], flags)
        for jump in jumps:
            self._lead(jump, len(self._steps))

    def _repeat(self, least: int, most: Any, inner: Any, flags: int) -> None:
        for _ in range(least):
            self._sequence(inner, flags)
        if str(most) == "MAXREPEAT":
            fork = self._fork()
            self._sequence(inner, flags)
            self._add("jump", fork)
            self._lead(fork, len(self._steps))
            return
        forks = []
        for _ in range(most - least):
            forks.append(self._fork())
            self._sequence(inner, flags)
        for fork in forks:
            self._lead(fork, len(self._steps))

    # -- matching --------------------------------------------------------------------------------------------------

    def match(self, text: str) -> Steps[bool]:
        """Return whether the whole text matches. A pattern and a text at their longest take seconds in all."""
        steps = self._steps
        current = self._reach([0], text, 0)
        reached = len(current)
        for position, char in enumerate(text):
            following = [steps[index][2] for index in current if steps[index][0] == "char" and steps[index][1](char)]
            current = self._reach(following, text, position + 1)
            if not current:
                return False
            reached += len(current)
            if reached >= MAX_STEPS:
                reached = 0
                yield
        return len(steps) - 1 in current

    def _reach(self, starts: list[int], text: str, position: int) -> dict[int, None]:
        """All steps that can be come to without reading on."""
        reached: dict[int, None] = {}
        waiting = starts
        while waiting:
            index = waiting.pop()
            if index in reached:
                continue
            reached[index] = None
            what, argument, target = self._steps[index]
            if what == "fork":
                waiting += (argument, target)
            elif what == "jump":
                waiting.append(argument)
            elif what == "at" and _is_at(argument[0], argument[1], text, position):
                waiting.append(target)
        return reached


def _is_at(place: str, is_multiline: bool, text: str, position: int) -> bool:
    before, after = text[position - 1 : position], text[position : position + 1]
    if place == "AT_BEGINNING":
        return position == 0 or (is_multiline and before == "\n")
    if place == "AT_BEGINNING_STRING":
        return position == 0
    if place == "AT_END":
        return position == len(text) or (is_multiline and after == "\n")
    if place == "AT_END_STRING":
        return position == len(text)
    is_boundary = (before in _WORD) != (after in _WORD)
    return is_boundary if place == "AT_BOUNDARY" else not is_boundary


def _test(kind: str, argument: Any, flags: int) -> Test:
    """Whether one character is what a node stands for."""
    if kind == "ANY":
        return (lambda char: True) if flags & re.DOTALL else (lambda char: char != "\n")
    if kind == "IN":
        inner = _class(argument)
    else:
        expected = chr(argument)
        inner = (lambda char: char == expected) if kind == "LITERAL" else (lambda char: char != expected)
    if not flags & re.IGNORECASE:
        return inner
    if kind == "NOT_LITERAL" or (kind == "IN" and str(argument[0][0]) == "NEGATE"):
        return lambda char: inner(char.lower()) and inner(char.upper())
    return lambda char: inner(char.lower()) or inner(char.upper())


def _class(items: list[Any]) -> Test:
    tests: list[Test] = []
    is_negated = False
    for kind, argument in items:
        name = str(kind)
        if name == "NEGATE":
            is_negated = True
        elif name == "LITERAL":
            tests.append(chr(argument).__eq__)
        elif name == "RANGE":
            tests.append(_range(*argument))
        else:
            category = str(argument)
            is_inside = _CATEGORIES[category.replace("_NOT_", "_")]
            tests.append(_opposite(is_inside) if "_NOT_" in category else is_inside)
    return lambda char: any(test(char) for test in tests) is not is_negated


def _opposite(test: Test) -> Test:
    return lambda char: not test(char)


def _range(first: int, last: int) -> Test:
    return lambda char: first <= ord(char) <= last
