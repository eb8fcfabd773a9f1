"""A made run can be trained: a step at full context before it is signed, of a task that the model is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.cli import app
from peer.config.hf_config import canonical_config
from peer.config.manifest import RunManifest
from peer.owner.new_run import create_run
from peer.trainer.hf import trial
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.trial import try_model
from peer.trainer.hf.trial_child import prepare

SIZES = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**SIZES, "intermediate_size": 64}
GPT2 = {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 66}
XLNET = {"vocab_size": 128, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}


def answer(model_type: str, task: str, fields: dict[str, Any], context: int = 66, is_whole: bool = True) -> Any:
    question = {
        "config": canonical_config({"model_type": model_type, **fields}),
        "task": task,
        "context": context,
        "vocab_size": 128,
        "mask_token": 127 if task == "masked-lm" else None,
        "is_whole": is_whole,
    }
    return prepare({"memory_bytes": 1 << 30})(question, b"")


@pytest.mark.parametrize(
    ("model_type", "task", "fields", "context", "is_whole"),
    [
        ("roberta", "masked-lm", {**TEXT, "max_position_embeddings": 66}, 64, True),
        ("roberta", "masked-lm", {**TEXT, "max_position_embeddings": 66}, 64, False),
        ("xlm-roberta", "masked-lm", {**TEXT, "max_position_embeddings": 50, "pad_token_id": 9}, 40, True),
        ("camembert", "causal-lm", {**TEXT, "max_position_embeddings": 66, "is_decoder": True}, 64, False),
        ("bert", "masked-lm", {**TEXT, "max_position_embeddings": 66}, 66, True),
        ("gpt2", "causal-lm", GPT2, 66, True),
        ("llama", "causal-lm", TEXT, 66, False),
    ],
)
def test_the_longest_context_that_works_is_found(
    model_type: str, task: str, fields: dict[str, Any], context: int, is_whole: bool
) -> None:
    found = answer(model_type, task, fields, is_whole=is_whole)
    assert (found["context"], bool(found["error"])) == (context, context < 66)
    assert found["sees_ahead"] is False


@pytest.mark.parametrize(
    ("model_type", "fields", "is_whole"), [("bert", TEXT, True), ("roberta", TEXT, False), ("xlnet", XLNET, True)]
)
def test_an_architecture_that_reads_in_both_directions_sees_ahead(
    model_type: str, fields: dict[str, Any], is_whole: bool
) -> None:
    assert answer(model_type, "causal-lm", fields, 32, is_whole)["sees_ahead"] is True


def test_a_model_that_is_too_large_is_not_tried_whole() -> None:
    large = {**TEXT, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32}
    assert answer("llama", "causal-lm", large, 4096) == {}


def test_a_model_that_fails_with_few_tokens_is_refused() -> None:
    with pytest.raises(Incompatible, match=r"fails in its first step of masked-lm .*; choose another --task or model"):
        answer("roberta", "masked-lm", {**TEXT, "max_position_embeddings": 3})


def described(folder: Path, fields: dict[str, Any], task: str | None = None) -> Any:
    (folder / "config.json").write_text(json.dumps(fields))
    return describe_model(folder, task)


def test_a_run_takes_the_longest_context_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    model = described(tmp_path, {"model_type": "roberta", **TEXT, "max_position_embeddings": 66})
    asked: list[int] = []

    def usable(manifest: RunManifest) -> int:
        asked.append(manifest.model.context)
        return min(64, manifest.model.context)

    made = create_run("tiny", None, tmp_path / "owner", model=model, usable_context=usable)
    assert (made.manifest.model.context, asked) == (64, [66])
    run_file = tmp_path / "run.toml"
    run_file.write_text("[model]\ncontext = 65\n")
    with pytest.raises(UsageFault, match=r"model\.context is 65; expected at most 64"):
        create_run("tiny", run_file, tmp_path / "other", model=model, usable_context=usable)
    assert not (tmp_path / "other").exists()
    run_file.write_text("[model]\ncontext = 16\n")
    made = create_run("tiny", run_file, tmp_path / "other", model=model, usable_context=usable)
    assert made.manifest.model.context == 16


def test_init_refuses_causal_lm_of_a_model_that_sees_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a real child: nothing is signed."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **TEXT}))
    arguments = ["init", "tiny", "--model", str(tmp_path), "--task", "causal-lm", "--out", str(tmp_path / "owner")]
    assert app.run(arguments) == 2
    assert "sees the token that it should predict" in capsys.readouterr().err
    assert not (tmp_path / "owner").exists()


class AnsweringChild:
    """Stands for the child: answers in turn, or dies of an exception among the answers."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def __enter__(self) -> AnsweringChild:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass

    def ask(self, question: dict[str, Any]) -> tuple[Any, bytes]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, b""


@pytest.mark.parametrize(
    ("answers", "context", "told", "num_children"),
    [
        ([{"context": 66, "error": "", "sees_ahead": False}], 66, (), 1),
        (
            [{"context": 64, "error": "index 66", "sees_ahead": False}],
            64,
            ("with 66 tokens the model fails (index 66)",),
            1,
        ),
        ([{}, {"context": 66, "error": "", "sees_ahead": False}], 66, ("too large for a trial on this machine",), 1),
        (
            [LocalFault("took more than 240 s"), {"context": 66, "error": "", "sees_ahead": False}],
            66,
            ("too large for a trial on this machine",),
            2,
        ),
        (
            [{}, {"context": 66, "error": "", "sees_ahead": None}],
            66,
            ("did not check whether it only reads forwards",),
            1,
        ),
    ],
)
def test_what_was_tried_is_told(
    tmp_path: Path,
    answers: list[Any],
    context: int,
    told: tuple[str, ...],
    num_children: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = described(tmp_path, {"model_type": "llama", **TEXT, "max_position_embeddings": 66})
    manifest = create_run("tiny", None, tmp_path / "owner", model=model).manifest
    children: list[tuple[Any, ...]] = []

    def start(*arguments: Any) -> AnsweringChild:
        children.append(arguments)
        return AnsweringChild(answers)

    monkeypatch.setattr(trial, "LimitedChild", start)
    longest, notes = try_model(manifest, None)
    assert longest == context
    assert len(notes) == len(told)
    assert len(children) == num_children
    assert all(part in note for part, note in zip(told, notes, strict=True))


ENCODER_DECODER = "has both an encoder and a decoder"
NO_HEAD = "not the head of a task that Murmuration trains; expected one of the tasks that fit"


@pytest.mark.parametrize(
    ("model_type", "named", "task", "said"),
    [
        ("t5", ["T5ForConditionalGeneration"], None, ENCODER_DECODER),
        ("t5", None, None, ENCODER_DECODER),
        ("bart", ["BartForConditionalGeneration"], None, ENCODER_DECODER),
        ("bart", ["BartForCausalLM"], None, ENCODER_DECODER),
        ("bart", None, "causal-lm", ENCODER_DECODER),
        ("whisper", ["WhisperForConditionalGeneration"], None, ENCODER_DECODER),
        ("whisper", None, "causal-lm", ENCODER_DECODER),
        ("clip", ["CLIPModel"], None, "no head for causal-lm, masked-lm; .* with murmuration.join"),
        ("clip", None, None, "no head for causal-lm, masked-lm"),
        ("bert", ["BertForPreTraining"], None, f"names BertForPreTraining.*{NO_HEAD} 'bert': causal-lm, masked-lm"),
        ("bert", "BertModel", None, f"names BertModel.*{NO_HEAD}"),
        ("llama", ["LlamaModel"], None, f"names LlamaModel.*{NO_HEAD} 'llama': causal-lm"),
    ],
)
def test_a_head_that_is_no_task_is_refused(
    tmp_path: Path, model_type: str, named: object, task: str | None, said: str
) -> None:
    fields = {"model_type": model_type} if named is None else {"model_type": model_type, "architectures": named}
    with pytest.raises(UsageFault, match=said):
        described(tmp_path, fields, task)


@pytest.mark.parametrize(
    ("fields", "named", "task", "note"),
    [
        ({"model_type": "bert", **TEXT}, ["BertForMaskedLM"], "masked-lm", ""),
        ({"model_type": "bert", **TEXT, "is_decoder": True}, ["BertLMHeadModel"], "causal-lm", ""),
        (
            {"model_type": "bert", **TEXT},
            None,
            "masked-lm",
            "the task is masked-lm, because the architecture reads in both",
        ),
        ({"model_type": "bert", **TEXT, "is_decoder": True}, [], "causal-lm", "the task is causal-lm, the first of"),
        ({"model_type": "gpt2", **GPT2}, ["GPT2LMHeadModel"], "causal-lm", ""),
        ({"model_type": "llama", **TEXT}, None, "causal-lm", "the task is causal-lm, the only task that fits"),
        ({"model_type": "llama", **TEXT}, ["CustomForCausalLM"], "causal-lm", ""),
    ],
)
def test_the_task_is_the_config_s_and_a_choice_is_told(
    tmp_path: Path, fields: dict[str, Any], named: object, task: str, note: str
) -> None:
    model = described(tmp_path, fields if named is None else {**fields, "architectures": named})
    assert model.task == task
    assert note in " ".join(model.notes) if note else not model.notes
