"""An administrator that deletes consumer groups, which succeeds while they have no members (KIP-229)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import RETRIABLE, Link, Versions
from odradek.simulation.history import History, Outcome

_REFUSALS: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP})


async def delete_group(link: Link, group: str) -> None:
    """Try once to delete a group. Raises nothing; the history has the outcome."""
    try:
        await link.connection()
        deletion = link.history.begin_group_deletion(link.name, group)
    except ConnectionLost:
        return
    outcome, error = Outcome.UNKNOWN, "no response"
    try:
        answer = await link.request(DeleteGroupsRequest(groups_names=[group]))
        code = ErrorCode(answer.results[0].error_code)
        error = code.name
        if code == ErrorCode.NONE:
            outcome = Outcome.OK
        elif code in _REFUSALS:
            outcome = Outcome.FAILED
        elif code not in RETRIABLE:
            link.history.note_odd(link.name, f"DeleteGroups: {error}")
    except ConnectionLost:
        pass
    link.history.end_group_deletion(deletion, outcome, error)


class GroupAdmin:
    """Tries to delete one of the groups at random times, until the world ends."""

    def __init__(self, world: World, history: History, name: str, random: Random, groups: Sequence[str]) -> None:
        self.name = name
        self._world = world
        self._random = random
        self._groups = groups
        self._link = Link(world, history, name, random, Versions(random))

    async def run(self) -> None:
        """Work until the world ends."""
        while not self._world.is_ending:
            await delete_group(self._link, self._random.choice(self._groups))
            await self._link.nap(self._random.choice((0.02, 0.1, 0.3)))
        self._link.close()
