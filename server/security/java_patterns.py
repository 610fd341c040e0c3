"""Regular expressions of Java, as rules that map names have them, translated to Python's.

Most of the syntax is equal. Constructs with another meaning or none in Python are translated, and those that cannot be
translated are refused, so that no rule matches other names than in Apache Kafka.

Source: the documentation of `java.util.regex.Pattern`.
"""

import re
from typing import Final

_TERMINATORS: Final = r"\n\r\x85\u2028\u2029"

_CLASSES: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7F",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1F\x7F",
    "XDigit": "0-9a-fA-F",
    "Space": r"\s",
}
"""The content of POSIX character classes, which match ASCII only."""

_SAME_ESCAPES: Final = "dDwWsSbBAntrfa0123456789"
_FLAGS: Final = re.compile(r"\(\?([ims]+)\)")
_GROUP: Final = re.compile(r"\(\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[ims]+:)")
_NAME: Final = re.compile(r"k<([A-Za-z][A-Za-z0-9]*)>")
_PROPERTY: Final = re.compile(r"([pP])\{(?:Is)?(\w+)\}")
_HEX: Final = re.compile(r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}")


def compile_java_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern for Python. Raises ValueError if it is invalid, or cannot be translated."""
    if "\\G" in pattern:
        raise ValueError("\\G is not supported in a regular expression")
    translated = _Translation(pattern).run()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(f"the regular expression is invalid: {error}") from None


class _Translation:
    """One pass over a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._is_dot_all = False
        self._parts: list[str] = []

    def run(self) -> str:
        pattern = self._pattern
        while self._position < len(pattern):
            character = pattern[self._position]
            if character == "\\":
                self._take_escape(in_class=False)
            elif character == "[":
                self._take_class()
            elif character == "(":
                self._take_group()
            elif character == ".":
                self._add("." if self._is_dot_all else f"[^{_TERMINATORS}]", 1)
            elif character == "$":
                self._add(rf"(?=(?:\r\n|[{_TERMINATORS}])?\Z)", 1)
            else:
                self._add(character, 1)
        return "".join(self._parts)

    def _add(self, text: str, length: int) -> None:
        """Append the translation of the next `length` characters."""
        self._parts.append(text)
        self._position += length

    def _take_group(self) -> None:
        pattern, position = self._pattern, self._position
        if not pattern.startswith("(?", position):
            self._add("(", 1)
            return
        flags = _FLAGS.match(pattern, position)
        if flags is not None:
            if position > 0 or "m" in flags[1]:
                raise ValueError(f"{flags[0]} is supported only as (?i) or (?s) at the begin of a regular expression")
            self._is_dot_all = "s" in flags[1]
            self._add(flags[0], len(flags[0]))
            return
        group = _GROUP.match(pattern, position)
        if group is None or any(flag in group[0] for flag in "ms" if group[0].endswith(":")):
            raise ValueError(f"{pattern[position : position + 4]} is not supported in a regular expression")
        text = group[0]
        self._add(text.replace("(?<", "(?P<") if text.endswith(">") and "<" in text else text, len(text))

    def _take_class(self) -> None:
        """Translate a character class up to its end."""
        pattern = self._pattern
        start = "[^" if pattern.startswith("[^", self._position) else "["
        self._add(start, len(start))
        is_first = True
        while self._position < len(pattern):
            character = pattern[self._position]
            if character == "]" and not is_first:
                self._add("]", 1)
                return
            is_first = False
            if character == "[" or pattern.startswith("&&", self._position):
                raise ValueError("unions and intersections of character classes are not supported")
            if character == "\\":
                self._take_escape(in_class=True)
            else:
                # Python reserves two of these characters in a row for set operations.
                self._add(f"\\{character}" if character in "&~|]" else character, 1)
        raise ValueError("a character class has no end")

    def _take_escape(self, *, in_class: bool) -> None:
        pattern, position = self._pattern, self._position + 1
        if position == len(pattern):
            raise ValueError("the regular expression ends with a backslash")
        character = pattern[position]
        if character == "Q":
            end = pattern.find("\\E", position)
            quoted = pattern[position + 1 :] if end < 0 else pattern[position + 1 : end]
            self._add(re.escape(quoted), len(quoted) + (2 if end < 0 else 4))
            return
        if prop := _PROPERTY.match(pattern, position):
            self._take_property(prop, in_class=in_class)
        elif (name := _NAME.match(pattern, position)) and not in_class:
            self._add(f"(?P={name[1]})", 1 + len(name[0]))
        elif code := _HEX.match(pattern, position):
            self._add(f"\\{code[0]}", 1 + len(code[0]))
        elif character in "zZ" and not in_class:
            self._add(r"\Z" if character == "z" else rf"(?=(?:\r\n|[{_TERMINATORS}])?\Z)", 2)
        elif character in _SAME_ESCAPES and not (character == "0" or (in_class and character in "bBA123456789")):
            self._add(f"\\{character}", 2)
        elif not character.isascii() or not character.isalnum():
            self._add(re.escape(character), 2)
        else:
            raise ValueError(f"\\{character} is not supported in a regular expression")

    def _take_property(self, prop: re.Match[str], *, in_class: bool) -> None:
        content = _CLASSES.get(prop[2])
        if content is None or (in_class and prop[1] == "P"):
            raise ValueError(f"\\{prop[0]} is not supported in a regular expression")
        if not in_class:
            content = f"[{'^' if prop[1] == 'P' else ''}{content}]"
        self._add(content, 1 + len(prop[0]))


class Replacement:
    """A replacement text of Java: `$1` and `${name}` are groups of the pattern, a backslash quotes a character.

    As in Kafka, a group that a pattern with groups does not have is literal text: `$4` with three groups.

    Raises ValueError if the text is invalid, also where Java does so only when it is used.
    """

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._parts: list[str | int] = []
        position = 0
        while position < len(text):
            character = text[position]
            if character == "\\":
                if position + 1 == len(text):
                    raise ValueError("the replacement ends with a backslash")
                self._parts.append(text[position + 1])
                position += 2
            elif character == "$":
                position = self._take_group(text, position, pattern)
            else:
                self._parts.append(character)
                position += 1

    def _take_group(self, text: str, position: int, pattern: re.Pattern[str]) -> int:
        """Append the group at `position`; return the position after it."""
        if name := re.compile(r"\$\{([A-Za-z][A-Za-z0-9]*)\}").match(text, position):
            if name[1] not in pattern.groupindex:
                raise ValueError(f"there is no group {name[0]}")
            self._parts.append(pattern.groupindex[name[1]])
            return name.end()
        digits = re.compile(r"\$([0-9]+)").match(text, position)
        if digits is None:
            raise ValueError("a dollar sign in a replacement must be followed by a group, or quoted by a backslash")
        number = int(digits[1][0])
        if number > pattern.groups:
            if not pattern.groups:
                raise ValueError(f"there is no group ${number}")
            self._parts.append(digits[0])
            return digits.end()
        end = position + 2
        while end < digits.end() and number * 10 + int(text[end]) <= pattern.groups:
            number = number * 10 + int(text[end])
            end += 1
        self._parts.append(number)
        return end

    def expand(self, match: re.Match[str]) -> str:
        """Return the text for a match."""
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self._parts)
