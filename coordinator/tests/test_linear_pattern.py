"""Linear patterns compared with those of Python's `re`, which have the same meaning."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.linear_pattern import MAX_PATTERN_CHARACTERS, LinearPattern
from odradek.coordinator.tests.driver import run_at_once

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\W", r"[\w-]", "(?:ab|b)", "(a)", "^", "$", r"\b", "(?i:A)", "x?"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?"])),
    ),
    max_leaves=8,
)


def matches(pattern: str, text: str) -> bool:
    return run_at_once(LinearPattern(pattern).match(text))


@given(PATTERNS, st.text("abcABx1-_\n", max_size=8))
def test_agrees_with_python(pattern, text):
    # Python's `$` also matches before a line feed at the end, RE2's does not.
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII).fullmatch(text) is not None
    assert matches(pattern, text) == expected


@pytest.mark.parametrize(
    "pattern",
    ["[", "(", "a**", "*", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", "a{9999}", "(?P=x)", "(){4294967294}",
     "((((){999}){999}){999}){999}", "(?:|){2000}", "x" * (MAX_PATTERN_CHARACTERS + 1)],
)
def test_refuses(pattern):
    with pytest.raises(ValueError):
        LinearPattern(pattern)


def test_hostile_patterns_take_linear_time():
    text = "a" * 200
    for pattern in ("(a+)+b", "(a|aa)+b", "(a*)*b", "(.*)*(.*)*(.*)*b", "((a+)+)+$b"):
        assert not matches(pattern, text)
    with pytest.raises(ValueError):
        LinearPattern("(" * 5000 + ")" * 5000)


def test_a_long_match_is_made_in_steps():
    steps = list(LinearPattern("(a*){200}b").match("a" * 100))
    assert 10 < len(steps) <= 100


def test_flags():
    assert matches("(?i)app-[a-c]+", "APP-abC")
    assert not matches("app-[a-c]+", "APP-abC")
    assert not matches("(?i)[^a]", "A")
    assert matches("(?i)[a-z]+", "\u212a"), "the Kelvin sign is an upper-case k"
    assert not matches("(?i)[a-z]+", "\u00df"), "its upper case, SS, has two characters"
    assert not matches("(?i)[a-z]+", "\u0130"), "its lower case has two characters"
    assert matches("(?i)[^a]", "\u00df")
    assert matches("(?s)a.b", "a\nb")
    assert not matches("a.b", "a\nb")
