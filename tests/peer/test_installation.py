"""What strangers type to get this very copy: nothing that anybody could have registered in its place."""

from __future__ import annotations

import sys

import pytest

from peer.cli import app
from peer.installation import command_for, extra_command_for, update_command_for, with_extra
from peer.version import VERSION

REPOSITORY = ["Homepage, https://example.org", "Repository, https://example.org/code"]


@pytest.mark.parametrize(
    ("direct_url", "project_urls", "command"),
    [
        (None, [], f"pip install murmuration-swarm=={VERSION}"),
        ('{"dir_info": {"editable": true}, "url": "file:///home/ada/code"}', [], ""),
        ('{"dir_info": {}, "url": "file:///home/ada/code"}', ["Homepage, https://example.org"], ""),
        ('{"dir_info": {}, "url": "file:///home/ada/code"}', REPOSITORY, "pip install git+https://example.org/code"),
        ('{"archive_info": {}, "url": "file:///home/ada/a.whl"}', [], ""),
        ('{"archive_info": {}, "url": "https://example.org/a b.whl"}', [], "pip install 'https://example.org/a b.whl'"),
        (
            '{"vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "0"}, "url": "https://example.org/c"}',
            [],
            "pip install git+https://example.org/c@v1",
        ),
        ('{"vcs_info": {"vcs": "git", "commit_id": "0"}, "url": "ssh://git@example.org/c"}', [], ""),
        ('{"vcs_info": {"vcs": "git", "commit_id": "0"}, "url": "https://ada:secret@example.org/c"}', [], ""),
    ],
)
def test_the_command_gets_what_this_copy_came_from(
    direct_url: str | None, project_urls: list[str], command: str
) -> None:
    assert command_for(direct_url, project_urls) == command


@pytest.mark.parametrize(
    ("command", "with_it"),
    [
        ("pip install murmuration-swarm==0.1.0", "pip install 'murmuration-swarm[hf]==0.1.0'"),
        (
            "pip install git+https://example.org/c@v1",
            "pip install 'murmuration-swarm[hf] @ git+https://example.org/c@v1'",
        ),
        ("pip install ./FOLDER", "pip install './FOLDER[hf]'"),
        ("pip install './FOLDER[hf]'", "pip install './FOLDER[hf]'"),
        ("pip install it", "pip install it"),
        ("sh get.sh; pip install it", "sh get.sh; pip install it"),
        ("pip install 'it", "pip install 'it"),
    ],
)
def test_a_run_of_transformers_needs_that_part_too(command: str, with_it: str) -> None:
    assert with_extra(command, "hf") == with_it


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "`pip install --upgrade murmuration-swarm`"),
        (
            '{"dir_info": {"editable": true}, "url": "file:///home/ada/code"}',
            "`git pull && pip install -e .` in its folder",
        ),
        ('{"dir_info": {}, "url": "file:///home/ada/code"}', "`git pull && pip install .` in the folder from which it"),
        (
            '{"vcs_info": {"vcs": "git", "requested_revision": "v1"}, "url": "https://example.org/a b"}',
            "`pip install --force-reinstall --no-deps 'git+https://example.org/a b'`",
        ),
        ('{"archive_info": {}, "url": "https://example.org/a.whl"}', "`pip install` with a newer file"),
    ],
)
def test_an_update_takes_the_way_the_copy_came(direct_url: str | None, command: str) -> None:
    assert update_command_for(direct_url).startswith(command)


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, f"`pip install 'murmuration-swarm[hf]=={VERSION}'`"),
        (
            '{"url": "https://example.org/c", "vcs_info": {"vcs": "git", "commit_id": "0"}}',
            "`pip install 'murmuration-swarm[hf] @ git+https://example.org/c'`",
        ),
        ('{"dir_info": {}, "url": "file:///home/ada/code"}', "`pip install '.[hf]'` in the folder of Murmuration"),
        (
            '{"dir_info": {"editable": true}, "url": "file:///home/ada/code"}',
            "`pip install -e '.[hf]'` in the folder of Murmuration",
        ),
        ("{}", "`pip install '.[hf]'` in the folder of Murmuration"),
    ],
)
def test_a_part_that_is_missing_comes_from_where_this_copy_came(direct_url: str | None, command: str) -> None:
    """PyPI has no such name, and anybody may register it."""
    assert extra_command_for(direct_url, "hf") == command


@pytest.mark.parametrize("words", [["dashboard", "tiny.abcdefghij234567abcd"], ["demo"]])
@pytest.mark.parametrize("library", ["PIL", "prometheus_client"])
def test_without_the_extra_of_the_page_a_sentence_has_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert app.run(words) == 2
    sentence = capsys.readouterr().err
    assert library in sentence
    assert "[page]" in sentence
    assert "pip install" in sentence
