"""The model sections that `peer init --model` writes, from a folder with a `config.json` or a single config file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dht.ground.errors import UsageFault, reading
from dht.ground.regular_files import read_regular
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.hf_config import TASKS, canonical_config
from peer.config.hf_model_section import DescribedModel
from peer.config.model_section import AdapterSection
from peer.config.validation_sentences import explain
from peer.trainer.data.loaded_tokenizer import USUAL_MASKS
from peer.trainer.data.tokenizing import TextTokenizer, load_tokenizer
from peer.trainer.hf.adapter import chosen_targets
from peer.trainer.hf.architecture import build_architecture, check_weights, config_of, weights_fit
from peer.trainer.hf.base_weights import HUB, check_files, from_hub, has_weights, read_base
from peer.trainer.hf.library_modules import head_of, tasks_of
from peer.trainer.hf.run_model import architecture_parts

CONFIG_NAME = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "generation_config.json",
)
"""Files of a model's folder that become files of the run. Slow tokenizers in other formats need more libraries."""
USED_SHARE = 0.9
"""Share of the token rows that must be used; configs round up by a few hundred rows, which costs little."""
NUM_BYTE_ROWS = 512
"""A byte-level model has 256 rows plus a few for special tokens; some round up to a power of two."""
OTHER_FORMS = (
    "*.model",
    "*.tiktoken",
    "*.spm",
    "*.vocab",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Tokenizer files of slow libraries; vocabularies come before files that describe them."""
MAX_CONFIG_FILE_BYTES = 1 << 20
"""Size limit of a config: one with a thousand label names takes 60 kB. Weights given by mistake are rejected."""


AdapterChoice = tuple[int, tuple[str, ...]]
"""(rank, names of linear layers) of an adapter that an owner requests; no names: all linear layers of the blocks."""


def describe_model(
    where: str | Path,
    task: str | None = None,
    adapter: AdapterChoice | None = None,
    frozen: tuple[str, ...] = (),
    tell: Callable[[str], object] = lambda sentence: None,
) -> DescribedModel:
    """Describe the model of a config in the form of a manifest, with the weights and tokenizer beside the config.

    Args:
        where: a folder with a config.json, a config file, or ``org/name@REVISION`` on the hub. If the folder contains
            weights (safetensors), the run begins with them.
        task: one of `TASKS`; None: derived from the file's `architectures`; without them a note states the chosen task.
        adapter: None: the whole model is trained.
        frozen: names of parameters and modules that are not trained.
        tell: receives a sentence before each part that may take long.

    Raises:
        UsageFault: the file is missing, is not a config or refers to other files, or transformers is not installed.
        Incompatible: transformers does not know the architecture, or has no such head for it.
    """
    path, source = Path(where), "folder"
    if not path.exists() and "/" in str(where) and not str(where).startswith((".", "/", "~")):
        source = f"{HUB}{where}"
        tell(f"asking the hub for {where}")
        path = from_hub(str(where), is_own=True)
    fields = _read(path / CONFIG_NAME if path.is_dir() else path)
    try:
        given = canonical_config(fields)
    except ValueError as error:
        raise UsageFault(f"{path}: {error}.") from error
    # The library's defaults may change with its version, so all values are written to the manifest.
    config = config_of(given)
    found = {name: value for name, value in config.to_diff_dict().items() if name != "use_cache"}
    try:
        text = canonical_config(found)
    except ValueError as error:
        raise UsageFault(f"{path}: {error}.") from error
    chosen, task_notes = _task(task, config, fields.get("architectures"), path)
    check_tokenizer_form(path, None if source == "folder" else str(where))
    tokenizer = load_tokenizer(path) if path.is_dir() and (path / TOKENIZER_FILES[0]).is_file() else None
    init = None
    is_given = has_weights(path)
    if source != "folder" and not is_given:
        raise UsageFault(
            f"{where} has no *.safetensors file on the hub, and weights in other formats are not fetched; expected a "
            "model's weights as safetensors; give another revision, or only its config.json to begin without weights."
        )
    if is_given:
        tell(f"reading the weights in {path}")
        check_files(path)
        check_weights(text, chosen, path)
        digest, num_bytes = read_base(path, weights_fit(text, chosen, path))
        init = {"source": source, "digest": digest, "num_bytes": num_bytes}
    tell("counting parameters")
    section_of_adapter = None if adapter is None else _adapter(adapter, text, chosen, has_weights=is_given)
    if frozen and adapter is not None:
        raise UsageFault("--freeze is given with --lora, which freezes the complete model; expected one of them.")
    shapes, buffer_shapes = architecture_parts(text, chosen, section_of_adapter, frozen)
    section: Any = config.get_text_config()
    vocab_size = getattr(section, "vocab_size", None)
    return DescribedModel(
        config=text,
        task=chosen,
        shapes=tuple(shapes),
        buffer_shapes=tuple(buffer_shapes),
        frozen=frozen,
        vocab_size=vocab_size,
        max_context=getattr(section, "max_position_embeddings", None),
        init=init,
        adapter=None if section_of_adapter is None else section_of_adapter.model_dump(mode="json"),
        mask_token=_mask_token(tokenizer, vocab_size) if chosen == "masked-lm" else None,
        files=tuple(path / name for name in TOKENIZER_FILES if path.is_dir() and (path / name).is_file()),
        notes=(
            *task_notes,
            *unused_rows(None if tokenizer is None else tokenizer.vocab_size, vocab_size),
        ),
    )


def _mask_token(tokenizer: TextTokenizer | None, vocab_size: int | None) -> int | None:
    """Return the tokenizer's mask token; without a tokenizer, the last token of the vocabulary, which is not a byte."""
    if tokenizer is None:
        return None if vocab_size is None else vocab_size - 1
    found = [tokenizer.special[name] for name in USUAL_MASKS if name in tokenizer.special]
    if not found:
        raise UsageFault(
            f"{tokenizer.path} has none of {', '.join(USUAL_MASKS)}; expected a token that replaces hidden tokens, "
            "because task masked-lm needs it; use a tokenizer with such a token (`peer data tokenizer` makes none)."
        )
    return found[0]


def _adapter(asked: AdapterChoice, text: str, task: str, *, has_weights: bool) -> AdapterSection:
    """Return the manifest's adapter section."""
    if not has_weights:
        raise UsageFault(
            "--lora is given, but --model has no weights beside its config; expected a folder with *.safetensors, "
            "because an adapter needs pretrained weights."
        )
    rank, names = asked
    targets = chosen_targets(build_architecture(text, task, without_values=True), names)
    try:
        return AdapterSection(rank=rank, targets=targets)
    except ValidationError as error:
        raise UsageFault(
            explain(error, AdapterSection, lambda name: "--lora" if name == "rank" else f"--{name}")
        ) from error


_OTHER_TASKS = "to train for another task, such as classification, use your own loop with murmuration.join"
_HEADS = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
}


def _task(asked: str | None, config: Any, architectures: object, path: Path) -> tuple[str, tuple[str, ...]]:
    """Return (the task, a note on the reason), as chosen by the owner or by the config's `architectures`.

    Raises:
        UsageFault: neither gives a task for which the architecture can be trained.
    """
    model_type, fitting = config.model_type, tasks_of(config.model_type)
    if asked is not None and asked not in TASKS:
        raise UsageFault(f"--task is {asked!r}; expected one of {', '.join(TASKS)}; {_OTHER_TASKS}.")
    if getattr(config, "is_encoder_decoder", False):
        raise UsageFault(
            f"the architecture {model_type!r} has both an encoder and a decoder, which no supported task trains; "
            f"expected an architecture for {' or '.join(TASKS)}; choose another model."
        )
    if asked is not None:
        return asked, ()
    if not fitting:
        raise UsageFault(
            f"the architecture {model_type!r} has no head for {', '.join(TASKS)}; expected one of these tasks; choose "
            f"another model; {_OTHER_TASKS}."
        )
    names = [architectures] if isinstance(architectures, str) else architectures
    named = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for name in named:
        for task in fitting:
            if name == head_of(model_type, task).__name__:
                return task, ()
        for head, task in _HEADS.items():
            if name.endswith(head) and task in fitting:
                return task, ()
    if named:
        raise UsageFault(
            f"{path} names {named[0][:80]}, which is not the head of a task that Murmuration trains; expected one of "
            f"the tasks that fit {model_type!r}: {', '.join(fitting)}; give --task with it, or choose another model; "
            f"{_OTHER_TASKS}."
        )
    if "masked-lm" in fitting and not getattr(config, "is_decoder", False):
        chosen, why = "masked-lm", "because the architecture reads in both directions"
    elif len(fitting) == 1:
        chosen, why = fitting[0], "the only task that fits"
    else:
        chosen, why = fitting[0], f"the first of the tasks that fit ({', '.join(fitting)})"
    return chosen, (f"The config lists no architectures, so the task is {chosen}, {why}; --task chooses another task.",)


def _read(path: Path) -> dict[str, Any]:
    wanted = f"the {CONFIG_NAME} of a Hugging Face model, or a folder that contains it; check --model."
    try:
        with reading(path, wanted):
            fields = json.loads(read_regular(path, MAX_CONFIG_FILE_BYTES).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageFault(f"{path} is not JSON ({error}); expected {wanted}") from error
    if not isinstance(fields, dict):
        raise UsageFault(f"{path} is not a JSON object; expected {wanted}")
    return fields


def check_tokenizer_form(folder: Path, hub_name: str | None) -> None:
    """Reject a model whose folder has a tokenizer in a format other than tokenizer.json.

    Args:
        hub_name: name of a model that was downloaded into `folder`; None: the user's own folder.

    Raises:
        UsageFault: the run would read bytes, on which the model was not trained.
    """
    if not folder.is_dir() or (folder / TOKENIZER_NAME).exists():
        return
    others = (path.name for pattern in OTHER_FORMS for path in sorted(folder.glob(pattern)))
    if (other := next(others, None)) is not None:
        where = "DIR" if hub_name is not None else str(folder)
        name, _, revision = (hub_name or "").partition("@")
        first = f"download it with `hf download {name} --revision {revision} --local-dir DIR`, and " if name else ""
        raise UsageFault(
            f"{folder if hub_name is None else hub_name} has {other} but no {TOKENIZER_NAME}, so the run would read "
            f"bytes instead of the model's tokens; expected {TOKENIZER_NAME}; {first}create it with transformers (and "
            f"sentencepiece, for a *.model file): AutoTokenizer.from_pretrained({where!r}).save_pretrained({where!r})"
        )


def unused_rows(num_tokens: int | None, vocab_size: int | None) -> tuple[str, ...]:
    """Return sentences about unused token rows; none if the run's text uses most of the model's rows.

    `peer.owner.new_run` refuses a tokenizer with more tokens than the model has rows.

    Args:
        num_tokens: number of tokens of the tokenizer; None: there is no tokenizer.
        vocab_size: number of token rows of the model; None: the model has no token rows.
    """
    if vocab_size is None:
        return ()
    if num_tokens is None:
        if vocab_size <= NUM_BYTE_ROWS:
            return ()
        return (
            f"config.json has {vocab_size:,} token rows, but no {TOKENIZER_NAME} is beside it, so a run of text reads "
            "bytes, which are 256 tokens, and all other rows cost memory and traffic without use.",
        )
    if num_tokens >= USED_SHARE * vocab_size:
        return ()
    return (
        f"config.json has {vocab_size:,} token rows, but the tokenizer has only {num_tokens:,} tokens, so the other "
        "rows cost memory and traffic without use.",
    )
