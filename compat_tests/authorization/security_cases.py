"""Requests about users, quotas and delegation tokens.

Without authentication no client may have a delegation token, so that requests about tokens get the same error with all
rights: `security/test_delegation_tokens` tests those of authenticated clients.
"""

from typing import Final

from compat_tests.authorization.case import Case

_SHA_256: Final = 1

SECURITY_CASES: Final = (
    Case("DescribeUserScramCredentials", (0,), lambda broker, number: {"users": [{"name": "nobody"}]}),
    Case(
        "AlterUserScramCredentials",
        (0,),
        lambda broker, number: {"deletions": [{"name": "nobody", "mechanism": _SHA_256}], "upsertions": []},
    ),
    Case(
        "DescribeClientQuotas",
        (0, 1),
        lambda broker, number: {
            "components": [{"entity_type": "user", "match_type": 0, "match": "nobody"}],
            "strict": False,
        },
    ),
    Case(
        "AlterClientQuotas",
        (0, 1),
        lambda broker, number: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
                }
            ],
            "validate_only": True,
        },
    ),
    Case("CreateDelegationToken", (1, 3), lambda broker, number: {"renewers": [], "max_lifetime_ms": -1}),
    Case("RenewDelegationToken", (1, 2), lambda broker, number: {"hmac": b"none", "renew_period_ms": -1}),
    Case("ExpireDelegationToken", (1, 2), lambda broker, number: {"hmac": b"none", "expiry_time_period_ms": -1}),
    Case("DescribeDelegationToken", (1, 3), lambda broker, number: {"owners": None}),
)
