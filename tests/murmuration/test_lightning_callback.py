"""`SwarmCallback` in a real `lightning.Trainer`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dht.ground.errors import LocalFault
from tests.kit.late_library import late_library
from tests.kit.trainer.lone_swarm import LoneSwarm, annealing, joining_alone

lightning = late_library("lightning.pytorch")
integration = late_library("murmuration.integrations.lightning", needs="lightning")

pytestmark = pytest.mark.filterwarnings("ignore")
RUN = "own.aaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LoneSwarm]]:
    with joining_alone(monkeypatch, "murmuration.integrations.callback_session.join") as made:
        yield made


def small_module(fails_at: int = -1, *, is_scheduled: bool = True) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            if number == fails_at:
                raise ZeroDivisionError
            inputs, targets = batch
            return nn.functional.mse_loss(self.net(inputs), targets)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            if not is_scheduled:
                return optimizer
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    return Module()


def fit(folder: Path, module: Any, callback: Any, **options: Any) -> Any:
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=4)
    trainer = lightning.Trainer(
        **{"max_steps": 6, "callbacks": [callback], "accelerator": "cpu", **options},
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return trainer


def test_a_trainer_joins_counts_and_leaves_with_the_anchor(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    module = small_module()
    fit(tmp_path, module, integration.SwarmCallback(RUN), accumulate_grad_batches=1)
    (swarm,) = sessions
    counters = swarm.training.link.mailbox.trainer
    assert (counters.inner_steps, counters.tokens) == (6, 24)
    assert counters.train_loss > 0
    assert swarm.left == [None]
    assert list(swarm.given["state"]) == ["scheduler.0"]
    assert torch.equal(module.net.weight, small_module().net.weight)


def test_a_run_with_a_schedule_decides_the_rate(
    tmp_path: Path, sessions: list[LoneSwarm], caplog: pytest.LogCaptureFixture
) -> None:
    with annealing():
        fit(tmp_path, small_module(is_scheduled=False), integration.SwarmCallback(RUN))
        assert "schedulers conflict" not in caplog.text
        fit(tmp_path, small_module(), integration.SwarmCallback(RUN))
    assert sessions[0].training.link.mailbox.trainer.learning_rate == pytest.approx(0.1 * 0.6)
    assert "the module's 1 schedulers conflict" in caplog.text


def test_a_part_of_the_module_may_be_the_runs(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    fit(
        tmp_path,
        small_module(),
        integration.SwarmCallback(RUN, part="net", ends_with_anchor=False),
        accumulate_grad_batches=2,
    )
    names = {piece.name for fragment in sessions[0].training.link.layout.fragments for piece in fragment.pieces}
    assert names == {"weight", "bias"}
    counters = sessions[0].training.link.mailbox.trainer
    assert (counters.inner_steps, counters.tokens) == (6, 48)


def test_an_exception_leaves(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, small_module(fails_at=2), integration.SwarmCallback(RUN))
    assert sessions[0].left == [ZeroDivisionError]


def test_it_stops_when_the_swarm_says_so(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    def over(swarm: Any) -> None:
        swarm.is_over = True

    trainer = fit(tmp_path, small_module(), integration.SwarmCallback(RUN, on_joined=over))
    assert trainer.global_step == 1


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"labels": torch.zeros(3), "input_ids": torch.zeros(3, 7, dtype=torch.int64)}, 21),
        ([torch.zeros(5, 3, 8, 8), torch.zeros(5)], 5),
        ([torch.zeros(5, 9, dtype=torch.int64)], 45),
        (torch.zeros(5, 3, 8, 8, dtype=torch.uint8), 5),
        ("text", 1),
    ],
)
def test_what_a_batch_counts(batch: Any, tokens: int) -> None:
    assert integration.tokens_of(batch) == tokens


def test_sigterm_ends_it_while_it_looks_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own handler would let it wait on for minutes."""

    def look_for_it(run_id: str, *, stop: Callable[[], bool], **choices: Any) -> None:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        raise LocalFault("asked to stop before the run was found")

    monkeypatch.setattr("murmuration.integrations.callback_session.join", look_for_it)
    with pytest.raises(LocalFault, match="asked to stop"):
        fit(tmp_path, small_module(), integration.SwarmCallback(RUN))
