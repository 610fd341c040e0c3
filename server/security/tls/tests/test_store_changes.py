"""Dynamic changes of the stores of the listener between brokers, and of the contexts in use."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from odradek.properties import PropertyError
from odradek.server.config.broker import BrokerConfig
from odradek.server.security.tls.certificates import Authority
from odradek.server.security.tls.contexts import make_server_context
from odradek.server.security.tls.reloaded_context import ReloadedContext
from odradek.server.security.tls.store_changes import check_store_change
from odradek.server.security.tls.tests.support import tls_properties


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores")
    first, second = Authority(datetime.now(UTC)), Authority(datetime.now(UTC))
    for name, authority in (("ca", first), ("other-ca", second)):
        (path / f"{name}.pem").write_bytes(authority.certificate)
    (path / "both-ca.pem").write_bytes(first.certificate + second.certificate)
    (path / "broker.pem").write_bytes(b"".join(first.issue("broker", ["localhost"])))
    (path / "renewed.pem").write_bytes(b"".join(first.issue("broker", ["localhost"])))
    (path / "other.pem").write_bytes(b"".join(second.issue("broker", ["localhost"])))
    return path


def config(directory: Path, key: str = "broker", trusted: str = "ca") -> BrokerConfig:
    return BrokerConfig({
        **tls_properties(directory, ssl_client_auth="required"),
        "zookeeper.connect": "z",
        "listener.name.ssl.ssl.keystore.location": str(directory / f"{key}.pem"),
        "listener.name.ssl.ssl.truststore.location": str(directory / f"{trusted}.pem"),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("key", "trusted", "is_accepted"),
    [
        ("renewed", "ca", True),
        ("broker", "both-ca", True),
        ("other", "both-ca", False),
        ("broker", "other-ca", False),
    ],
)
def test_stores_between_brokers_must_fit_the_last_ones(
    directory: Path, key: str, trusted: str, is_accepted: bool
) -> None:
    present, changed = config(directory), config(directory, key, trusted)
    if is_accepted:
        changed.validate_change(present)
        return
    with pytest.raises(PropertyError, match="a TLS handshake with the key store and the trust store between brokers"):
        changed.validate_change(present)


def test_without_the_last_files_only_the_new_ones_are_checked(directory: Path) -> None:
    gone = config(directory, "gone").tls_settings("SSL")
    check_store_change(gone, config(directory, "other", "other-ca").tls_settings("SSL"), is_inter_broker=True)


def test_new_connections_use_the_changed_stores(directory: Path) -> None:
    context = ReloadedContext(config(directory).tls_settings("SSL"), make_server_context, lambda: 0.0)
    first = context()
    context.update(config(directory).tls_settings("SSL"))
    assert context() is first, "nothing has changed"
    context.update(config(directory, "renewed").tls_settings("SSL"))
    second = context()
    assert second is not first
    context.update(config(directory, "gone").tls_settings("SSL"))
    assert context() is second, "files that cannot be used are not used"
    context.update(config(directory).tls_settings("SSL"))
    assert context() is not second
