"""Names that options take, such as states. An unknown one is reported with the nearest names or all of them."""

from collections.abc import Iterable, Sequence
from typing import Final

from odradek.tools.cli.session import EXIT_USAGE, CommandError
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

GROUP_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Stable",
    "Empty",
    "Dead",
)
GROUP_TYPES: Final = ("classic", "consumer", "share", "streams")
TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)


def find_choices(what: str, texts: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the names that texts are, in any case. Raises CommandError for an unknown one."""
    by_lower = {name.lower(): name for name in names}
    found = []
    for text in texts:
        if text.lower() not in by_lower:
            raise unknown_choice(what, text, names)
        found.append(by_lower[text.lower()])
    return found


def unknown_choice(what: str, text: str, names: Sequence[str]) -> CommandError:
    """Return the usage error of a text that is none of some names."""
    similar = find_similar(text, names)
    hint = format_suggestion(similar) or f"; there are {', '.join(names)}"
    return CommandError(f"there is no {what} {text}{hint}", exit_code=EXIT_USAGE, similar=similar or names)
