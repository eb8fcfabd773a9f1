"""While the anchors of a run come, a person is told how much has come, and nothing that does not move."""

from __future__ import annotations

import sys

import pytest

from peer.export import run_anchors


def test_only_a_count_that_moves_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [100.0]
    monkeypatch.setattr("peer.export.run_anchors.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = run_anchors._teller()
    shown = []
    for at, done_bytes in ((105, 0), (107, 0), (108, 3), (108.1, 5), (109.2, 5), (111, 5), (111.1, 10), (111.2, 10)):
        clock[0] = at
        show(1000 * done_bytes, 10_000)
        shown.append(capsys.readouterr().err)
    lines = {2: "fetched 3.00 kB of 10.0 kB\n", 4: "fetched 5.00 kB of 10.0 kB\n", 6: "fetched 10.0 kB of 10.0 kB\n"}
    assert shown == [lines.get(number, "") for number in range(8)]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    run_anchors._teller()(10_000, 10_000)
    assert capsys.readouterr().err == "", "nobody looks"
