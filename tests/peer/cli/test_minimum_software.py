"""`peer manifest edit --minimum-software` shuts out older software, and never everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.cli import app
from peer.owner.owned_run import open_owned_run
from peer.version import VERSION


@pytest.mark.parametrize(
    ("minimum", "code", "sentence"),
    [
        ("0.1.0", 0, "software 0.1.0 or newer"),
        (VERSION, 0, f"software {VERSION} or newer"),
        ("99.0.0", 2, "is newer than this software"),
        ("99.0.0.dev", 2, "update this software first"),
        ("0.2", 2, "expected something like 0.2.0"),
        ("0.2.0.dev+g1234567", 2, "expected something like 0.2.0"),
    ],
)
def test_the_owner_asks_for_what_the_owner_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minimum: str, code: int, sentence: str
) -> None:
    folder = tmp_path / "owner"
    assert app.run(["init", "ours", "--out", str(folder)]) == 0
    capsys.readouterr()
    assert app.run(["manifest", "edit", "--data-dir", str(folder), "--minimum-software", minimum]) == code
    printed = capsys.readouterr()
    assert sentence in " ".join((printed.out + printed.err).split())
    draft = open_owned_run(None, folder).draft
    assert (draft is not None) == (code == 0)
