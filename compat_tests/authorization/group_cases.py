"""Requests about groups and committed offsets."""

from typing import Final

from compat_tests.authorization.case import COMMITTED, GROUPS, IDS, Case, Values, by_id, named

_INDEXES: Final = {"partition_indexes": [0]}
_SUBSCRIPTION: Final = b"\0\0\0\0\0\0\0\0\0\0"


def _group(name: str, rows: list[Values] | None) -> Values:
    return {"group_id": name, "topics": rows}


GROUP_CASES: Final = (
    Case("OffsetCommit", (2, 9), lambda broker, number: {"group_id": "group", "topics": named(**COMMITTED)}),
    Case("OffsetCommit", (10,), lambda broker, number: {"group_id": "group", "topics": by_id(broker, **COMMITTED)}),
    Case(
        "OffsetCommit",
        (9,),
        lambda broker, number: {"group_id": "hidden-group", "topics": named(**COMMITTED)},
        label="hidden group",
    ),
    Case(
        "OffsetCommit",
        (9,),
        lambda broker, number: {"group_id": "group", "topics": named(**COMMITTED)[2:]},
        label="nothing left",
    ),
    Case("OffsetFetch", (1, 2, 7), lambda broker, number: {"group_id": "group", "topics": named(**_INDEXES)}),
    Case("OffsetFetch", (2, 7), lambda broker, number: {"group_id": "group", "topics": None}, label="all topics"),
    Case(
        "OffsetFetch",
        (5,),
        lambda broker, number: {"group_id": "hidden-group", "topics": named(**_INDEXES)},
        label="hidden group",
    ),
    Case(
        "OffsetFetch",
        (8, 9),
        lambda broker, number: {
            "groups": [
                _group(name, rows) for name in ("hidden-group", "group", "absent-group") for rows in [named(**_INDEXES)]
            ]
        },
    ),
    Case(
        "OffsetFetch",
        (8, 9),
        lambda broker, number: {"groups": [_group(name, None) for name in GROUPS]},
        label="all topics",
    ),
    Case(
        "OffsetFetch",
        (10,),
        lambda broker, number: {"groups": [_group(name, by_id(broker, **_INDEXES)) for name in GROUPS]},
    ),
    Case("FindCoordinator", (0, 3), lambda broker, number: {"key": "group", "key_type": 0}),
    Case("FindCoordinator", (1, 3), lambda broker, number: {"key": "transaction", "key_type": 1}, label="transaction"),
    Case(
        "FindCoordinator",
        (4, 6),
        lambda broker, number: {"coordinator_keys": [*GROUPS, "absent-group", "hidden-absent-group"], "key_type": 0},
    ),
    Case(
        "FindCoordinator", (4, 6), lambda broker, number: {"coordinator_keys": IDS, "key_type": 1}, label="transactions"
    ),
    Case(
        "FindCoordinator",
        (4, 5),
        lambda broker, number: {"coordinator_keys": ["group:AAAAAAAAAAAAAAAAAAAAAA:0"], "key_type": 2},
        label="share group",
    ),
    Case(
        "JoinGroup",
        (0, 3, 9),
        lambda broker, number: {
            "group_id": "group",
            "session_timeout_ms": 1,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
        },
    ),
    Case(
        "JoinGroup",
        (9,),
        lambda broker, number: {
            "group_id": "",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocols": [],
        },
        label="empty group id",
    ),
    Case("Heartbeat", (0, 4), lambda broker, number: {"group_id": "group", "generation_id": 1, "member_id": "nobody"}),
    Case("LeaveGroup", (2,), lambda broker, number: {"group_id": "group", "member_id": "nobody"}),
    Case("LeaveGroup", (3, 5), lambda broker, number: {"group_id": "group", "members": [{"member_id": "nobody"}]}),
    Case("SyncGroup", (0, 4), lambda broker, number: {"group_id": "group", "generation_id": 1, "member_id": "nobody"}),
    Case(
        "SyncGroup",
        (5,),
        lambda broker, number: {
            "group_id": "group",
            "generation_id": 1,
            "member_id": "nobody",
            "protocol_type": "consumer",
            "protocol_name": "range",
        },
    ),
    Case(
        "SyncGroup",
        (5,),
        lambda broker, number: {"group_id": "group", "generation_id": 1, "member_id": "nobody"},
        label="without protocol",
    ),
    Case(
        "DescribeGroups",
        (0, 3, 6),
        lambda broker, number: {
            "groups": [*GROUPS, "absent-group", "hidden-absent-group"],
            "include_authorized_operations": True,
        },
    ),
    Case("ListGroups", (0, 3, 5), lambda broker, number: {}),
    Case(
        "DeleteGroups",
        (0, 2),
        lambda broker, number: {"groups_names": ["absent-group", "hidden-absent-group", "hidden-group"]},
    ),
    Case(
        "OffsetDelete",
        (0,),
        lambda broker, number: {"group_id": "group", "topics": named(partitions=[{"partition_index": 7}])},
    ),
    Case(
        "OffsetDelete",
        (0,),
        lambda broker, number: {"group_id": "absent-group", "topics": named(partitions=[{"partition_index": 7}])},
        label="absent group",
    ),
)
