"""Loggers with a level of their own, and their names."""

import pytest

from odradek.tools.kafka.topics.broker_loggers import find_aliases, mark_own_levels
from odradek.tools.kafka.topics.configs import ConfigValue


def mark(levels):
    values = [
        ConfigValue(name, level, "broker logger", None, True, False, False, None) for name, level in levels.items()
    ]
    return {one.name: one.default for one in mark_own_levels(values) if one.is_changed}


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({"root": "INFO", "org.apache.kafka.a": "INFO"}, {"root": None}),
        (
            {"root": "INFO", "a": "WARN", "a.b.c": "WARN", "a.b.d": "DEBUG"},
            {"root": None, "a": "INFO", "a.b.d": "WARN"},
        ),
        (
            {"root": "INFO", "odradek": "WARN", "log": "WARN", "kafka.log": "WARN", "twisted": "INFO"},
            {"root": None, "odradek": "INFO"},
        ),
        (
            {"root": "INFO", "odradek": "INFO", "log.compaction": "DEBUG", "kafka.log.LogCleaner": "DEBUG"},
            {"root": None, "log.compaction": "INFO", "kafka.log.LogCleaner": "INFO"},
        ),
    ],
)
def test_a_level_that_differs_from_that_of_the_logger_above(levels, expected):
    assert mark(levels) == expected


def test_a_logger_with_several_names():
    assert find_aliases(["a", "kafka.log"]) == {"a": [], "kafka.log": []}
    names = ["kafka.log", "log", "odradek", "org.apache.kafka.storage.internals.log", "state.change.logger"]
    assert find_aliases(names) == {
        "log": ["kafka.log", "org.apache.kafka.storage.internals.log"], "odradek": [], "state.change.logger": [],
    }  # fmt: skip
