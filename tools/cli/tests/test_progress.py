"""Progress bars of commands with a scripted cluster: on a terminal only."""

from odradek.protocol.messages.delete_topics import DeleteTopicsResponse, DeleteTopicsResponseDeletableTopicResult
from odradek.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from odradek.tools.cli.main import main
from odradek.tools.cli.terminal.progress import show_progress
from odradek.tools.cli.tests.test_scripted_cluster import client  # noqa: F401


def use_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def test_a_number_of_items(capsys, monkeypatch):
    use_terminal(monkeypatch)
    with show_progress("deleting topics", 250, are_bytes=False) as advance:
        advance(100)
    err = capsys.readouterr().err
    assert "deleting topics" in err and "100/250" in err


def test_an_unknown_number_of_items(capsys, monkeypatch):
    use_terminal(monkeypatch)
    with show_progress("consuming", None, are_bytes=False) as advance:
        advance(1000)
        advance(234)
    err = capsys.readouterr().err
    assert "consuming" in err and "1234/?" in err and "0:00:0" in err


def test_many_topics_are_deleted_by_several_requests(client, capsys, monkeypatch):  # noqa: F811
    use_terminal(monkeypatch)
    topics = [MetadataResponseTopic(error_code=0, name=f"t{n}", partitions=[]) for n in range(250)]
    client.responses[MetadataResponse].topics = topics
    client.responses[DeleteTopicsResponse] = DeleteTopicsResponse(
        responses=[DeleteTopicsResponseDeletableTopicResult(name="t", error_code=0)]
    )
    assert main(["topic", "delete", *(f"t{n}" for n in range(250)), "--yes"]) == 0
    assert client.sent.count("DeleteTopics") == 3
    captured = capsys.readouterr()
    assert "250/250" in captured.err
    assert captured.out == "topic t deleted\n" * 3
