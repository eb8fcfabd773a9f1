"""A session goes on beside the same frozen parameters, or says that they are others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dht.ground.errors import LocalFault
from tests.kit.trainer import checkpoint_peer
from tests.kit.trainer.checkpoint_peer import Net, resumed, saved_pair


class WithBase(Net):
    """`Net` behind a frozen layer."""

    seed = 1

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(self.seed)
        self.base = torch.nn.Linear(6, 6).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(self.base(inputs))


def test_the_same_base_goes_on_and_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_peer, "Net", WithBase)
    saved_pair(tmp_path)
    assert resumed(tmp_path).link.inner_steps > 0
    monkeypatch.setattr(WithBase, "seed", 2)
    with pytest.raises(
        LocalFault, match=r"^the frozen parameter 'base.weight' differs from that of this peer's earlier sessions"
    ):
        resumed(tmp_path)


class Compiled(torch.nn.Module):
    """As what torch.compile returns: the names of all that it wraps begin with `_orig_mod`."""

    def __init__(self, inner: type[torch.nn.Module]) -> None:
        super().__init__()
        self._orig_mod = inner()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._orig_mod(inputs)
        return out


def bare() -> torch.nn.Module:
    return WithBase()


def wrapped() -> torch.nn.Module:
    return Compiled(WithBase)


@pytest.mark.parametrize(("before", "now"), [(bare, wrapped), (wrapped, bare)])
def test_a_session_may_wrap_what_an_earlier_one_did_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[], torch.nn.Module],
    now: Callable[[], torch.nn.Module],
) -> None:
    monkeypatch.setattr(checkpoint_peer, "Net", before)
    saved_pair(tmp_path)
    held = list(resumed(tmp_path).module.buffers())
    monkeypatch.setattr(checkpoint_peer, "Net", now)
    assert not all(torch.equal(*pair) for pair in zip(now().buffers(), held, strict=True))
    assert all(torch.equal(*pair) for pair in zip(resumed(tmp_path).module.buffers(), held, strict=True))
    monkeypatch.setattr(WithBase, "seed", 2)
    with pytest.raises(
        LocalFault, match=r"^the frozen parameter 'base.weight' differs from that of this peer's earlier sessions"
    ):
        resumed(tmp_path)
