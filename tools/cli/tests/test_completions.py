"""Names in completions."""

from types import SimpleNamespace

import pytest

from odradek.tools.cli.terminal import completions
from odradek.tools.cli.terminal.completions import is_safe


@pytest.mark.parametrize(
    "name",
    [
        "\\$(reboot)", "`reboot`", "$HOME", "it's", 'a"b', "esc\x1b]0;x\x07", "two\nlines", "x;reboot", "x&y>z", "a|b",
        "(x)", "/et*", "!x", "a group", "~root", "=ls", "-rf", "%1", "{a,b}", "a?", "[x]", "#x", "",
    ],
)  # fmt: skip
def test_a_name_that_a_shell_would_run_is_not_completed(name):
    # Typer writes \$(reboot) as "\\$(reboot)", which zsh evaluates.
    assert not is_safe(name)


@pytest.mark.parametrize("name", ["orders.v1", "billing-2", "群組", "a:b", "a/b@c+d=e,f%g"])
def test_other_names_are_completed(name):
    assert is_safe(name)


@pytest.mark.parametrize(
    ("complete", "incomplete", "expected"),
    [
        (completions.complete_group_states, "st", ["Stable"]),
        (completions.complete_group_types, "s", ["share", "streams"]),
        (completions.complete_transaction_states, "Complete", ["CompleteCommit", "CompleteAbort"]),
        (completions.complete_operations, "re", ["Read"]),
        (completions.complete_formats, "int", ["int8", "int16", "int32", "int64"]),
        (completions.complete_topic_settings, "retention.", ["retention.bytes=", "retention.ms="]),
    ],
)
def test_fixed_values(complete, incomplete, expected):
    assert complete(incomplete) == expected


def test_profiles(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert completions.complete_profiles("") == []
    (tmp_path / "odradek").mkdir()
    file = tmp_path / "odradek" / "profiles.toml"
    file.write_text("[staging]\n[production]\n")
    assert completions.complete_profiles("") == ["production", "staging"]
    assert completions.complete_profiles("p") == ["production"]
    file.write_text("[")
    assert completions.complete_profiles("") == []


@pytest.mark.parametrize(
    "complete",
    [
        completions.complete_topics,
        completions.complete_transactional_ids,
        completions.complete_config_settings,
        completions.complete_changed_configs,
    ],
)
@pytest.mark.parametrize("server", ["127.0.0.1:1", "nowhere"])
def test_nothing_is_completed_if_anything_fails(complete, server):
    context = SimpleNamespace(params={"bootstrap_server": server, "kind": "topic", "names": ["t"]})
    assert complete(context, "") == []
