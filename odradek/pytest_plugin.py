"""Pytest fixtures that give a test a real broker."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker that gives a test's broker its properties."""
    config.addinivalue_line(
        "markers", "odradek(properties): properties of the broker that the odradek fixtures start"
    )
