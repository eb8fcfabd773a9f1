"""The congestion control is what the kernel says, and unknown where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.p2pd.congestion_control import congestion_control


@pytest.mark.parametrize(("content", "name"), [(b"bbr\n", "bbr"), (b"cubic", "cubic"), (b"\xff", ""), (None, "")])
def test_the_congestion_control_is_what_the_kernel_says(tmp_path: Path, content: bytes | None, name: str) -> None:
    path = tmp_path / "tcp_congestion_control"
    if content is not None:
        path.write_bytes(content)
    assert congestion_control(path) == name
