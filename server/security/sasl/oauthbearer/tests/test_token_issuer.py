"""The issuer of tokens for tests."""

import threading
from typing import Any

import pytest

from odradek.server.security.sasl.oauthbearer.tests import token_issuer


def test_concurrent_first_calls_return_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    generate = token_issuer._generate_key
    keys: list[Any] = []
    second = threading.Thread(target=lambda: keys.append(token_issuer.private_key("ES256", "concurrent")))
    is_first = True

    def generate_during_a_second_call(algorithm: str) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            second.start()
            # Without mutual exclusion the second call ends now.
            second.join(0.2)
        return generate(algorithm)

    monkeypatch.setattr(token_issuer, "_generate_key", generate_during_a_second_call)
    keys.append(token_issuer.private_key("ES256", "concurrent"))
    second.join()
    first_key, second_key = keys
    assert first_key is second_key
