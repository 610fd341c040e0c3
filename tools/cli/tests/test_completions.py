"""Names in completions."""

import pytest

from odradek.tools.cli.completions import is_safe


@pytest.mark.parametrize("name", ["\\$(reboot)", "`reboot`", "$HOME", "it's", 'a"b', "esc\x1b]0;x\x07", "two\nlines"])
def test_a_name_that_a_shell_would_run_is_not_completed(name):
    # Typer writes \$(reboot) as "\\$(reboot)", which zsh evaluates.
    assert not is_safe(name)


@pytest.mark.parametrize("name", ["orders.v1", "billing-2", "a group", "群組", "a:b"])
def test_other_names_are_completed(name):
    assert is_safe(name)
