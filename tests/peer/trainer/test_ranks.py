"""Several processes as one peer: what rows they share, and wrong use."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dht.ground.errors import DeviceFault, UsageFault
from peer.trainer.devices.device_choice import device_of
from peer.trainer.devices.portion import range_of_rows
from peer.trainer.devices.rank_orders import Order, OrderKind, Ranks
from peer.trainer.devices.sharding import buffers_to, check_can_shard, check_division
from peer.trainer.devices.torchrun import Place, place_from
from peer.trainer.loop.rank_process import Follower


def test_beside_offloaded_rows_the_buffers_are_on_the_device() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    buffers_to(module, torch.device("meta"))
    assert {one.device.type for one in module.buffers()} == {"meta"}
    assert {one.device.type for one in module.parameters()} == {"cpu"}


def test_rows_are_shared_as_torch_shares_them() -> None:
    for num_rows in range(8):
        for num_ranks in range(1, 5):
            chunks = torch.arange(num_rows).chunk(num_ranks) if num_rows else ()
            for rank in range(num_ranks):
                begin, end = range_of_rows(num_rows, rank, num_ranks)
                assert list(range(begin, end)) == (chunks[rank].tolist() if rank < len(chunks) else [])


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is '2', but RANK and LOCAL_RANK and MASTER_ADDR and MASTER_PORT are not set"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "peer join --devices N"),
        (
            {"WORLD_SIZE": "x", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "WORLD_SIZE is 'x'; expected a whole number",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "RANK is 2 and WORLD_SIZE is 2; expected RANK below",
        ),
    ],
)
def test_half_of_torchruns_environment_is_a_mistake(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageFault) as caught:
        place_from(environ)
    assert words in str(caught.value)


def test_torchruns_environment() -> None:
    assert place_from({}) is None
    assert place_from({"WORLD_SIZE": "1"}) is None
    environ = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert place_from(environ) == Place(3, 1, 4, "10.0.0.1", 29500)


def test_what_devices_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check_division(8, 4)
    with pytest.raises(UsageFault, match=r"3 devices cannot share an inner step of 8 sequences.*expected 1, 2, 4 or 8"):
        check_division(8, 3)
    with pytest.raises(UsageFault, match="16 devices cannot share"):
        check_division(8, 16)
    with pytest.raises(UsageFault, match=r"muon, which needs complete matrices.*expected adamw"):
        check_can_shard("muon")
    with pytest.raises(UsageFault, match=r"--base-bits 4 and --shard.*expected one of them"):
        check_can_shard("adamw", base_bits="4")
    check_can_shard("adamw")
    place = Place(1, 1, 2, "", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceFault, match="'cuda' is not available"):
        device_of("cuda", place)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceFault, match=r"process 1 of this peer needs a separate GPU, but this machine has 1"):
        device_of("cuda", place)
    with pytest.raises(UsageFault, match=r"names one GPU, but there are 2 processes"):
        device_of("cuda:0", place)
    assert device_of("auto", Place(0, 0, 2, "", 0)) == torch.device("cuda:0")


def test_a_process_without_its_first_one_ends_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "peer.trainer.loop.rank_process", "{}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1


def test_every_rank_takes_a_step_at_the_same_share_of_the_rate() -> None:
    ordered: list[tuple[float, ...]] = []
    positions = np.arange(4, dtype=np.int64)

    class Told(Ranks):
        def order(self, kind: OrderKind, *numbers: float) -> None:
            ordered.append((kind, *numbers))

        def _broadcast(self, message: torch.Tensor) -> None:
            pass

        def positions(self, order: Order) -> NDArray[np.int64]:
            return positions

    leading = Told(0, 2, None, is_sharded=False)  # type: ignore[arg-type]
    leading.step(positions, 7, 0.25)
    kind, *numbers = ordered[0]
    taken: list[Any] = []

    class Inner:
        def step(self, *given: Any) -> None:
            taken.append(given)

    follower = Follower(leading, None, Inner(), None)  # type: ignore[arg-type]
    assert follower.obey(Order(OrderKind(int(kind)), tuple(numbers)))
    assert taken == [(positions, 7, 0.25)]
