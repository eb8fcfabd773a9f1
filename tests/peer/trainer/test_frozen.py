"""A session goes on beside the same frozen parameters, or says that they are others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dht.ground.errors import LocalFault
from peer.trainer.loop.checkpoint_portion import check_frozen, frozen_digests
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
    with pytest.raises(LocalFault, match=r"^the frozen parameter 'base.weight' is not the one beside which this peer"):
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
    with pytest.raises(LocalFault, match=r"^the frozen parameter 'base.weight' is not the one beside which this peer"):
        resumed(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float64])
@pytest.mark.parametrize("num_values", [1, 5000, 100_003])
def test_one_other_seed_is_seen_in_any_type_and_size(dtype: torch.dtype, num_values: int) -> None:
    def digests(seed: int) -> dict[str, str]:
        generator = torch.Generator().manual_seed(seed)
        values = (200 * torch.rand(num_values, generator=generator)).to(dtype)
        module = torch.nn.Module()
        module.register_parameter("w", torch.nn.Parameter(values, requires_grad=False))
        return frozen_digests(module)

    check_frozen(digests(1), digests(1), "here")
    with pytest.raises(LocalFault, match="'w'"):
        check_frozen(digests(1), digests(2), "here")


@pytest.mark.parametrize("before", [{}, {"w": "bfloat16 4 aa"}, {"other": "float32 4 a"}])
def test_what_cannot_be_compared_is_not(before: dict[str, str]) -> None:
    """A parameter that was trained then, or a base that is kept in another type now."""
    check_frozen({"w": "float32 4 bb"}, before, "here")


def test_what_is_trained_is_none_of_them() -> None:
    module = torch.nn.Linear(2, 2)
    assert frozen_digests(module) == {}
    module.bias.requires_grad_(False)
    assert list(frozen_digests(module)) == ["bias"]
