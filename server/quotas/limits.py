"""The limit that applies to a client, by Kafka's precedence (KIP-55).

Limits of users and client ids are independent for each kind of quota. The clients to which one entity's limit applies
share it or not as in Kafka: a limit of a user is shared by the clients of the user, one of a client id by the users of
that client id, and that of a pair is not shared.
"""

from typing import Final, NamedTuple

from odradek.server.quotas.entities import DEFAULT

Owner = tuple[str, str]
"""The user and client id whose use is counted together; empty for all of them."""

_Pair = tuple[str | None, str | None]


class Limit(NamedTuple):
    """A limit, and the clients that share it."""

    bound: float
    owner: Owner


class Limits:
    """The limits of one kind, by user and client id."""

    def __init__(self) -> None:
        self._bounds: dict[_Pair, float] = {}

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def put(self, user: str | None, client_id: str | None, bound: float | None) -> None:
        """Set the limit of an entity; None removes it."""
        if bound is None:
            self._bounds.pop((user, client_id), None)
        else:
            self._bounds[user, client_id] = bound

    def find(self, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client; None if it has none.

        A client without a client id has no limits of client ids or pairs, as in Kafka.
        """
        bounds = self._bounds
        for pair, owner in _list_candidates(user, client_id):
            bound = bounds.get(pair)
            if bound is not None:
                return Limit(bound, owner)
        return None


def _list_candidates(user: str, client_id: str) -> tuple[tuple[_Pair, Owner], ...]:
    """Return the entities whose limits may apply, the first one first."""
    of_user, of_client_id = (user, ""), ("", client_id)
    if not client_id:
        return ((user, None), of_user), ((DEFAULT, None), of_user)
    if not user:
        return ((None, client_id), of_client_id), ((None, DEFAULT), of_client_id)
    pair: Final = (user, client_id)
    return (
        ((user, client_id), pair),
        ((user, DEFAULT), pair),
        ((user, None), of_user),
        ((DEFAULT, client_id), pair),
        ((DEFAULT, DEFAULT), pair),
        ((DEFAULT, None), of_user),
        ((None, client_id), of_client_id),
        ((None, DEFAULT), of_client_id),
    )
