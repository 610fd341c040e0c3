"""Generated edits of wiki pages over a day: by users, in sessions, and by bots, almost in order."""

import json
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

TOPIC = "example.edits"
SESSIONS = "example.sessions"
DEAD_LETTERS = "example.edits.dead-letters"
PARTITIONS = 2
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PAUSE = timedelta(minutes=30)
"""As in sessions.py."""
BOTS = ("SpellingBot", "linkbot", "Archivist")
PEOPLE = 60
PAGES = 200
OUT_OF_ORDER = timedelta(minutes=1)
BAD_SHARE = 0.005
CLOSING_USER = "the closing edit"
CLOSING_AT = BEGIN + timedelta(days=2)
"""A session is written when the watermark, which follows the newest edit, has passed its end. Generated data ends, and
with `--available-now` the last sessions would stay open. So there is one more edit, a day later. Its session is the
only one that is never written."""


class EditSession(NamedTuple):
    """The expected record of a session."""

    user: str
    began: datetime
    ended: datetime
    edits: int
    pages: int
    bytes: int


@dataclass(frozen=True)
class Edits:
    """Keys and values in the order of production, and the number of each kind."""

    records: list[tuple[bytes, bytes]]
    bad: int
    by_bots: int


def make_edits(count: int = 6_000, seed: int = 7) -> Edits:
    """Return the edits of a day, and the closing edit."""
    chance = random.Random(seed)
    edits = sorted(
        _make_user_edits(chance, count * 2 // 3) + _make_bot_edits(chance, count // 3), key=lambda one: one[0]
    )
    records, bad = [], 0
    # The order of arrival is not always the order of the edits.
    for at, edit in sorted(edits, key=lambda one: one[0] + OUT_OF_ORDER * chance.random()):
        value = json.dumps(edit | {"at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")})
        if chance.random() < BAD_SHARE:
            value = value[: len(value) // 2]
            bad += 1
        records.append((edit["user"].encode(), value.encode()))
    last = {"user": CLOSING_USER, "page": "Main page", "bytes": 0, "bot": False, "at": CLOSING_AT.isoformat()}
    records.append((CLOSING_USER.encode(), json.dumps(last).encode()))
    return Edits(records, bad, count // 3)


def _make_user_edits(chance: random.Random, count: int) -> list[tuple[datetime, dict[str, Any]]]:
    """Return edits with minutes between them, and hours between sessions; some pauses are slightly less than PAUSE."""
    edits: list[tuple[datetime, dict[str, Any]]] = []
    each = count // PEOPLE
    for person in range(PEOPLE):
        at = BEGIN + timedelta(hours=chance.uniform(0, 2))
        for number in range(each if person else count - each * (PEOPLE - 1)):
            if number:
                minutes = chance.choices((chance.uniform(0, 8), 29.99, chance.uniform(40, 300)), (90, 5, 5))[0]
                at += timedelta(milliseconds=round(minutes * 60_000))
            page = f"Page {int(chance.triangular(0, PAGES, 0))}"
            edit = {"user": f"user{person:03}", "page": page, "bytes": chance.randint(-500, 2000), "bot": False}
            edits.append((at, edit))
    return edits


def _make_bot_edits(chance: random.Random, count: int) -> list[tuple[datetime, dict[str, Any]]]:
    edits: list[tuple[datetime, dict[str, Any]]] = []
    for _ in range(count):
        bot = chance.choice(BOTS)
        edit = {"user": bot, "page": f"Page {chance.randrange(PAGES)}", "bytes": chance.randint(-5, 5), "bot": True}
        edits.append((BEGIN + timedelta(days=1) * chance.random(), edit))
    return edits


def compute_sessions(records: Iterable[tuple[bytes, bytes]]) -> list[EditSession]:
    """Return the expected output of the pipeline, computed in plain Python; sorted."""
    by_user: dict[str, list[tuple[datetime, str, int]]] = defaultdict(list)
    for _, value in records:
        try:
            edit = json.loads(value)
        except ValueError:
            continue
        if not edit["bot"] and edit["user"] != CLOSING_USER:
            by_user[edit["user"]].append((datetime.fromisoformat(edit["at"]), edit["page"], edit["bytes"]))
    found = []
    for user, edits in by_user.items():
        edits.sort()
        begins = [n for n, edit in enumerate(edits) if n == 0 or edit[0] - edits[n - 1][0] >= PAUSE]
        for begin, end in zip(begins, [*begins[1:], len(edits)], strict=True):
            session = edits[begin:end]
            pages = len({page for _, page, _ in session})
            size = sum(edit[2] for edit in session)
            found.append(EditSession(user, session[0][0], session[-1][0], len(session), pages, size))
    return sorted(found)
