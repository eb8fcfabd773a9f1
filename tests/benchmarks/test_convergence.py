"""The convergence benchmark measures what ships: its swarms keep the identities of the averaging code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.convergence import __main__ as convergence
from benchmarks.convergence.arms import Arm, Task, with_length
from benchmarks.convergence.replica import Replicas
from benchmarks.convergence.swarm import Swarm, run_arm
from peer.config.model_section import ModelSection
from peer.config.training_section import TrainingSection
from peer.trainer.data.corpus import open_corpus
from peer.trainer.model.muon import orthogonalised

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
    return Task(model, with_length(TrainingSection(batch_size=2), 24), corpus, evaluation_batches=2, num_steps=24)


@pytest.mark.parametrize("missing_share", [0.0, 0.5])
@pytest.mark.parametrize(
    "arm",
    [
        Arm("carry", 3, 4, overlay_gain=0.6),
        Arm("carry", 3, 4, delay_rounds=2.0, overlay_gain_end=1.2, codec="int8"),
        Arm("carry", 3, 4, delay_rounds=0.5, num_fragments=2, codec="fp32", momentum_lookahead=1.0),
        Arm("carry", 3, 4, error_feedback=False),
        Arm("eager", 3, 4, own_weight=0.5),
        Arm("carry", 3, 4, codec="int8", residual_shown=0.25),
        Arm("eager", 3, 4, outer_lr=0.4),
        Arm("carry", 3, 4, overlay_gain=0.0),
        Arm("sync", 3, 4, delay_rounds=0.0),
        Arm("carry", 3, 4, optimizer="muon", pull=0.5),
        Arm("carry", 3, 4, num_slow=2, slow_factor=3.0),
        Arm("carry", 3, 4, num_slow=1, slow_factor=3.0, adapts_sync_every=False),
        Arm("carry", 3, 4, num_liars=1, lie="noise", combine="centered_clip"),
    ],
    ids=lambda arm: arm.changes_from(Arm()) if isinstance(arm, Arm) else None,
)
def test_live_parameters_are_anchor_minus_overlay_residual_and_local_work(
    arm: Arm, missing_share: float, task: Task
) -> None:
    swarm = Swarm(Arm(**{**vars(arm), "missing_share": missing_share}), task, seed=1)
    for step in range(1, task.num_steps + 1):
        swarm.inner_step(step)
        swarm.after_inner_step(step)
        for lane in swarm.lanes:
            for replica, state in zip(swarm.replicas, lane.states, strict=True):
                shown = state.shown()
                shown += lane.hidden.get(replica.index, 0.0)
                if arm.momentum_lookahead:
                    shown -= arm.momentum_lookahead * swarm.lookahead_rate * state.momentum
                torch.testing.assert_close(replica.ref[lane.inside], torch.from_numpy(shown), atol=2e-6, rtol=1e-5)
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


@pytest.mark.parametrize("adapts", [True, False])
def test_slow_peers_send_as_often_as_the_others_or_as_much(adapts: bool, task: Task) -> None:
    arm = Arm("carry", 3, 6, num_slow=1, slow_factor=3.0, adapts_sync_every=adapts, staleness_limit=9)
    swarm = Swarm(arm, task, seed=0)
    sizes = []
    for step in range(1, task.num_steps + 1):
        swarm.inner_step(step)
        swarm.after_inner_step(step)
        pending = [state.pending for state in swarm.lanes[0].states]
        if step % 6 == 0:
            sizes.append([sent.steps if sent else 0 for sent in pending])
    assert [fast for fast, _, _ in sizes] == [6, 6, 6, 6]
    assert [slow for _, _, slow in sizes] == ([2, 2, 2, 2] if adapts else [0, 0, 6, 0])


@pytest.mark.parametrize("lie", ["negated", "noise", "nan"])
def test_a_robust_combination_refuses_every_lie(lie: str, task: Task) -> None:
    arm = Arm("carry", 5, 6, num_liars=1, lie=lie, combine="centered_clip")
    outcome = run_arm(arm, task, seed=0, steps_between_losses=24)
    assert 3 <= outcome.num_refused <= 4  # a late one may be longer, so that one lie can pass, shortened
    honest = run_arm(Arm("carry", 5, 6, combine="centered_clip"), task, seed=0, steps_between_losses=24)
    assert honest.num_refused == 0
    assert outcome.loss == pytest.approx(honest.loss, abs=0.1)


def test_the_plain_mean_believes_a_liar(task: Task) -> None:
    honest, deceived = (
        run_arm(Arm("carry", 5, 6, num_liars=liars), task, seed=0, steps_between_losses=24) for liars in (0, 1)
    )
    assert deceived.num_refused == 0
    assert deceived.loss > honest.loss + 0.1


def test_batched_gradients_are_those_of_each_replica_alone(task: Task) -> None:
    replicas = Replicas(3, Arm("carry", 3, 4), task, seed=0)
    for replica in replicas:
        replica.live.mul_(1 + 0.1 * replica.index)
    before = replicas.live.clone()
    replicas.step(0, lambda index: index != 1)
    for replica in replicas:
        alone = Replicas(1, Arm("carry", 1, 4), task, seed=0)
        alone.live.copy_(before[replica.index])
        alone.peer_ids = [f"peer-{replica.index}"]
        alone.step(0)
        expected = before[1] if replica.index == 1 else alone[0].live
        torch.testing.assert_close(replica.live, expected, atol=1e-6, rtol=1e-5)
        assert replica.index == 1 or not torch.equal(replica.live, before[replica.index])


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((8, 32), (32, 8), (16, 16)):
        matrix = torch.randn(shape, generator=generator)
        found = orthogonalised(matrix)
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        singular = torch.linalg.svdvals(found)
        assert 0.4 < float(singular.min()) <= float(singular.max()) < 1.3
        aligned = torch.einsum("ik,ij,kj->k", left, found, right)
        torch.testing.assert_close(aligned, singular.sort(descending=True).values, atol=0.8, rtol=0)
        torch.testing.assert_close(left @ torch.diag(aligned) @ right, found, atol=1e-4, rtol=1e-3)


def test_muon_trains_the_matrices_of_the_blocks_and_adamw_the_rest(task: Task) -> None:
    swarm = Swarm(Arm("carry", 1, 8, optimizer="muon"), task, seed=0)
    before = {name: tensor.detach().clone() for name, tensor in swarm.replicas[0].model.named_parameters()}
    swarm.inner_step(1)
    rate = task.training.learning_rate / task.training.warmup_steps
    for name, tensor in swarm.replicas[0].model.named_parameters():
        moved = float((tensor.detach() - before[name]).square().mean().sqrt()) / rate
        if name.startswith("blocks") and tensor.dim() == 2:
            # 0.2 sqrt(longer side) times a nearly orthogonal matrix.
            assert 0.05 < moved < 0.3, name
        else:
            assert 0.4 < moved <= 1.01, name


def test_a_diverging_arm_is_reported_not_raised(task: Task) -> None:
    outcome = run_arm(
        Arm("carry", 2, 2, overlay_gain=0.0, outer_lr=1e38, codec="fp32"), task, seed=0, steps_between_losses=4
    )
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
        ("lie=silence", "lie 'silence'; expected one of negated, noise, nan"),
        ("optimizer=sgd", "optimizer 'sgd'; expected one of adamw, muon"),
        ("num_liars=4", "num_liars 4; expected 0 to below num_peers 4"),
        ("pull=2", "pull from 0 to 1"),
    ],
)
def test_wrong_arms_are_refused_with_the_field(given: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        convergence.main(["--arm", given])
    assert sentence in capsys.readouterr().err
