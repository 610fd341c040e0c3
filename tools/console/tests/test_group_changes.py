"""Offsets that a reset of a group selects."""

from odradek.tools.console.pages.group_changes import shift_offsets


def test_a_committed_offset_of_0_is_shifted_like_others():
    first = {("t", 0): 100, ("t", 1): 100, ("t", 2): 100}
    committed = {("t", 0): 0, ("t", 1): 150}
    assert shift_offsets(committed, first, 10) == {("t", 0): 10, ("t", 1): 160, ("t", 2): 110}
