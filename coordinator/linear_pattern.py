"""Regular expressions of clients, matched in linear time.

Python's `re` uses backtracking: with a pattern of a dozen characters it can block the broker's only thread for hours.
Kafka uses RE2, whose time is linear in the text (KIP-848, KIP-1152). This module compiles a pattern to a program and
simulates it as a nondeterministic automaton, as RE2 does. The syntax is the common subset of Python and RE2: no
back-references and no lookaround; classes such as `\\d` are ASCII.
"""

import re
import string
from collections.abc import Callable
from typing import Any, Final

from odradek.coordinator.steps import Steps

MAX_INSTRUCTIONS: Final = 1_500
"""Maximum number of instructions of a compiled pattern, which contains each repetition of an expression."""
MAX_PATTERN_CHARACTERS: Final = 4_096
"""Maximum length of a pattern, for which the parser takes a few milliseconds."""

_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": frozenset(string.digits).__contains__,
    "CATEGORY_SPACE": frozenset(" \t\n\r\f").__contains__,
    "CATEGORY_WORD": _WORD.__contains__,
}

CharPredicate = Callable[[str], bool]


class LinearPattern:
    """A compiled pattern. Raises ValueError for an invalid or unsupported pattern."""

    def __init__(self, pattern: str) -> None:
        from re import _parser  # type: ignore[attr-defined]  # imported here because few brokers need it

        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError("the pattern is too long")
        try:
            parsed = _parser.parse(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from error
        self._program: list[tuple[str, Any, int]] = []
        """Instructions: kind, argument, index of the next one. A text matches if it ends at the last instruction."""
        self._sequences = 0
        try:
            self._sequence(parsed, parsed.state.flags)
        except RecursionError as error:
            raise ValueError("the pattern is nested too deeply") from error
        self._add("end", None, 0)

    # -- compilation -----------------------------------------------------------------------------------------------

    def _add(self, kind: str, argument: Any, target: int | None = None) -> int:
        if len(self._program) >= MAX_INSTRUCTIONS:
            raise ValueError("the pattern is too long")
        self._program.append((kind, argument, len(self._program) + 1 if target is None else target))
        return len(self._program) - 1

    def _fork(self) -> int:
        return self._add("fork", None)

    def _set_target(self, index: int, destination: int) -> None:
        """Set the second target of a fork, or the only target of a jump."""
        kind, _, target = self._program[index]
        self._program[index] = (kind, destination, target)

    def _sequence(self, nodes: Any, flags: int) -> None:
        # Counted because repetitions of an empty expression add no instruction.
        self._sequences += 1
        if self._sequences > MAX_INSTRUCTIONS:
            raise ValueError("the pattern is too long")
        for kind, argument in nodes:
            self._node(str(kind), argument, flags)

    def _node(self, kind: str, argument: Any, flags: int) -> None:
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            self._add("char", _char_predicate(kind, argument, flags))
        elif kind == "AT":
            self._add("at", (str(argument), bool(flags & re.MULTILINE)))
        elif kind == "SUBPATTERN":
            _, added, removed, inner = argument
            self._sequence(inner, (flags | added) & ~removed)
        elif kind == "BRANCH":
            self._branch(argument[1], flags)
        elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
            minimum, maximum, inner = argument
            self._repeat(minimum, maximum, inner, flags)
        else:
            raise ValueError(f"{kind.lower()} is not supported")

    def _branch(self, branches: list[Any], flags: int) -> None:
        jumps = []
        for branch in branches[:-1]:
            fork = self._fork()
            self._sequence(branch, flags)
            jumps.append(self._add("jump", None))
            self._set_target(fork, len(self._program))
        self._sequence(branches[-1], flags)
        for jump in jumps:
            self._set_target(jump, len(self._program))

    def _repeat(self, minimum: int, maximum: Any, inner: Any, flags: int) -> None:
        for _ in range(minimum):
            self._sequence(inner, flags)
        if str(maximum) == "MAXREPEAT":
            fork = self._fork()
            self._sequence(inner, flags)
            self._add("jump", fork)
            self._set_target(fork, len(self._program))
            return
        forks = []
        for _ in range(maximum - minimum):
            forks.append(self._fork())
            self._sequence(inner, flags)
        for fork in forks:
            self._set_target(fork, len(self._program))

    # -- match -----------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of instructions; a match takes time in proportion to it and to the length of the text."""
        return len(self._program)

    def match(self, text: str) -> Steps[bool]:
        """Return whether the whole text matches. The longest pattern and text take seconds, in steps."""
        program = self._program
        current = self._reachable([0], text, 0)
        visited = len(current)
        for position, char in enumerate(text):
            following = [
                program[index][2] for index in current if program[index][0] == "char" and program[index][1](char)
            ]
            current = self._reachable(following, text, position + 1)
            if not current:
                return False
            visited += len(current)
            if visited >= MAX_INSTRUCTIONS:
                visited = 0
                yield
        return len(program) - 1 in current

    def _reachable(self, starts: list[int], text: str, position: int) -> dict[int, None]:
        """Return all instructions that can be reached from `starts` without reading a character."""
        reached: dict[int, None] = {}
        remaining = starts
        while remaining:
            index = remaining.pop()
            if index in reached:
                continue
            reached[index] = None
            kind, argument, target = self._program[index]
            if kind == "fork":
                remaining += (argument, target)
            elif kind == "jump":
                remaining.append(argument)
            elif kind == "at" and _is_at(argument[0], argument[1], text, position):
                remaining.append(target)
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


def _char_predicate(kind: str, argument: Any, flags: int) -> CharPredicate:
    """Return a function that returns whether a character matches a node."""
    if kind == "ANY":
        return (lambda char: True) if flags & re.DOTALL else (lambda char: char != "\n")
    if kind == "IN":
        inner = _char_class(argument)
    else:
        expected = chr(argument)
        inner = (lambda char: char == expected) if kind == "LITERAL" else (lambda char: char != expected)
    if not flags & re.IGNORECASE:
        return inner
    if kind == "NOT_LITERAL" or (kind == "IN" and str(argument[0][0]) == "NEGATE"):
        return lambda char: all(map(inner, _cases(char)))
    return lambda char: any(map(inner, _cases(char)))


def _cases(char: str) -> list[str]:
    """Return the lower and the upper case of a character, without those of several characters, such as SS."""
    return [case for case in (char.lower(), char.upper()) if len(case) == 1]


def _char_class(items: list[Any]) -> CharPredicate:
    predicates: list[CharPredicate] = []
    is_negated = False
    for kind, argument in items:
        name = str(kind)
        if name == "NEGATE":
            is_negated = True
        elif name == "LITERAL":
            predicates.append(chr(argument).__eq__)
        elif name == "RANGE":
            predicates.append(_range(*argument))
        else:
            category = str(argument)
            is_inside = _CATEGORIES[category.replace("_NOT_", "_")]
            predicates.append(_negate(is_inside) if "_NOT_" in category else is_inside)
    return lambda char: any(predicate(char) for predicate in predicates) is not is_negated


def _negate(predicate: CharPredicate) -> CharPredicate:
    return lambda char: not predicate(char)


def _range(first: int, last: int) -> CharPredicate:
    return lambda char: first <= ord(char) <= last
