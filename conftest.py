"""In which order the tests run."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that may take longest come first: at the end no process is left with one of them alone."""
    most_s: dict[object, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        allowed_s = float(marker.args[0]) if marker is not None and marker.args else 0.0
        most_s[item.path] = max(most_s.get(item.path, 0.0), allowed_s)
    items.sort(key=lambda item: -most_s[item.path])
