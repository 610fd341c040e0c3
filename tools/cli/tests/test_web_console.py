import pytest

from odradek.tools.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0 is reachable from other machines and requires --password-file"),
        (["--listen", "8080"], "--listen 8080 is not host:port"),
        (["--listen", "localhost:99999"], "--listen localhost:99999 is not host:port"),
        (["--password-file", "/nonexistent"], "--password-file /nonexistent: No such file or directory"),
        (["--password-file", "/dev/null"], "--password-file /dev/null is empty"),
        (["--value-schema", "order.avsc"], "--value-schema order.avsc is not TOPIC=FILE or TOPIC=FILE:MESSAGE"),
        (["--key-schema", "t="], "--key-schema t= is not TOPIC=FILE or TOPIC=FILE:MESSAGE"),
        (["--listen", "127.0.0.1:0", "--value-schema", "t=/gone.avsc"], "/gone.avsc: No such file or directory"),
        (["--listen", "127.0.0.1:0", "--key-schema", "t=/gone.desc:a.B"], "/gone.desc: No such file or directory"),
    ],
)
def test_invalid_options(capsys, arguments, message):
    assert main(["console", *arguments]) == 2
    assert capsys.readouterr().err == f"odradek: {message}\n"


def test_an_invalid_registry(capsys, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text("schema.registry.url=registry:8081\n")
    assert main(["console", "--listen", "127.0.0.1:0", "--command-config", str(config)]) == 2
    assert capsys.readouterr().err.startswith("odradek: schema.registry.url registry:8081: this is no http")


def test_an_invalid_profile(capsys, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/nonexistent\n")
    assert main(["console", "--listen", "127.0.0.1:0", "--command-config", str(config)]) != 0
    assert "ssl.truststore.location" in capsys.readouterr().err
