"""The convergence benchmark measures what ships: its swarms keep the identities of the averaging code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import convergence
from benchmarks.convergence_arms import Arm, Task, with_length
from benchmarks.convergence_swarm import Swarm, run_arm
from peer.data import open_corpus
from peer.manifest import ModelSection, TrainingSection

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch-size", "2"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors this small only wait for each other on more threads, long so on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(400)))
    return path


@pytest.fixture(scope="module")
def task(text: Path) -> Task:
    model = ModelSection(num_layers=1, d_model=16, num_heads=2, context=16)
    corpus = open_corpus(f"text:{text}", vocab_size=256, context=16, held_out_fraction=0.05)
    return Task(model, with_length(TrainingSection(batch_size=2), 24), corpus, evaluation_batches=2)


@pytest.mark.parametrize("missing_share", [0.0, 0.5])
@pytest.mark.parametrize(
    "arm",
    [
        Arm("carry", 3, 4, overlay_gain=0.6),
        Arm("carry", 3, 4, delay_rounds=2.0, overlay_gain_end=1.2, codec="int2"),
        Arm("carry", 3, 4, delay_rounds=0.5, num_fragments=2, codec="e3m0", momentum_lookahead=1.0),
        Arm("carry", 3, 4, error_feedback=False),
        Arm("own", 3, 4, own_weight=0.5),
        Arm("carry", 3, 4, codec="int2", residual_shown=0.25),
        Arm("eager", 3, 4, outer_lr=0.4),
        Arm("delayed", 3, 4, error_feedback_decay=0.9),
        Arm("sync", 3, 4, delay_rounds=0.0),
    ],
    ids=lambda arm: arm.changes_from(Arm()) if isinstance(arm, Arm) else None,
)
def test_live_parameters_are_anchor_minus_overlay_residual_and_local_work(
    arm: Arm, missing_share: float, task: Task
) -> None:
    swarm = Swarm(Arm(**{**vars(arm), "missing_share": missing_share}), task, seed=1)
    for step in range(1, task.num_steps + 1):
        for replica in swarm.replicas:
            replica.step(step - 1)
        swarm.after_inner_step(step)
        for lane in swarm.lanes:
            for replica, state in zip(swarm.replicas, lane.states, strict=True):
                shown = state.shown()
                shown += lane.hidden.get(replica.index, torch.zeros(()))
                if arm.momentum_lookahead:
                    shown -= arm.momentum_lookahead * swarm.lookahead_rate * state.momentum
                torch.testing.assert_close(replica.ref[lane.inside], shown, atol=2e-6, rtol=1e-5)
    swarm.drain()
    assert swarm.num_commits > 3
    for lane in swarm.lanes:
        assert len({state.refresh_digest() for state in lane.states}) == 1


def test_one_peer_that_averages_with_itself_trains_as_if_alone(task: Task) -> None:
    alone = run_arm(Arm("data_parallel", num_peers=1), task, seed=2, steps_between_losses=8)
    arm = Arm("sync", 1, 4, delay_rounds=0.0, outer_lr=1.0, outer_momentum=0.0, codec="fp32")
    averaged = run_arm(arm, task, seed=2, steps_between_losses=8)
    assert [step for step, _ in averaged.curve] == [step for step, _ in alone.curve] == [8, 16, 24]
    assert averaged.loss == pytest.approx(alone.loss, abs=1e-4)
    assert averaged.loss < averaged.curve[0][1]


def test_what_is_not_committed_in_time_is_committed_at_the_end(task: Task) -> None:
    swarm = Swarm(Arm("carry", 2, 4, delay_rounds=1.0, codec="fp32"), task, seed=0)
    swarm.run(steps_between_losses=24)
    for lane in swarm.lanes:
        assert lane.commit_at is None
        assert not any(state.unsent_tokens or state.pending for state in lane.states)
        tokens = swarm.task.num_steps * 2 * 16 * len(swarm.replicas)
        assert {state.lineage_tokens for state in lane.states} == {tokens}


def test_a_diverging_arm_is_reported_not_raised(task: Task) -> None:
    outcome = run_arm(Arm("delayed", 2, 2, outer_lr=1e38, codec="fp32"), task, seed=0, steps_between_losses=4)
    assert outcome.diverged_at is not None
    assert outcome.loss != outcome.loss


def test_table_and_json_name_command_machine_and_every_arm(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--source", f"text:{text}", "--rounds", "2", "--seeds", "0,1", "--evaluation-batches", "1"]
    arguments += ["--base", "num_peers=2,sync_every=3", "--arm", "mode=carry,overlay_gain=.5/1", "--arm", "mode=sync"]
    convergence.main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["command"].endswith("--json")
    assert found["machine"]["torch"] == torch.__version__
    assert [arm["settings"]["overlay_gain"] for arm in found["arms"]] == [0.5, 1.0, 0.7]
    assert all(len(arm["losses"]) == 2 and arm["deviation"] > 0 for arm in found["arms"])
    convergence.main(arguments)
    table = capsys.readouterr().out
    assert "overlay_gain=0.5" in table
    assert f"{found['arms'][2]['mean']:.4f}" in table


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("gain=1", "unknown key 'gain'"),
        ("mode=best", "mode 'best'; expected one of"),
        ("num_peers=two", "num_peers=two; expected a value of type int"),
        ("missing_share=1", "expected 0 to below 1"),
    ],
)
def test_wrong_arms_are_refused_with_the_field(given: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        convergence.main(["--arm", given])
    assert sentence in capsys.readouterr().err
