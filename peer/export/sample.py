"""`peer sample`: what a model says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path

from torch import nn

from dht.ground.errors import Incompatible
from peer.export.model_source import ModelSource
from peer.export.opened_model import OpenedModel, open_model
from peer.trainer.data.tokenizing import OpenTokenizer
from peer.trainer.devices.device_choice import select_device
from peer.trainer.model.sampling import NUM_BYTES, sample_tokens, shown_text, spoken_text, write_pieces


def sample_model(
    source: ModelSource,
    prompt: str,
    max_tokens: int,
    temperature: float,
    seed: int,
    device_name: str,
    base: Path | None = None,
) -> int:
    """Print what a model says after `prompt`, each character as soon as it is there; returns the exit code.

    Args:
        base: see `open_model`.

    Raises:
        LocalFault: the model cannot be had, or nothing says how its tokens become text.
    """
    device = select_device(device_name)
    opened = open_model(source, base)
    pieces = written(opened, opened.model.to(device), prompt, max_tokens, temperature, seed)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    write_pieces(pieces, partial(print, end="", flush=True))
    return 0


def written(
    opened: OpenedModel,
    model: nn.Module,
    prompt: str,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> Iterator[str]:
    """Text, piece by piece, the prompt first; what is wrong is said before it.

    Args:
        model: `opened.model`, on the device that computes.

    Raises:
        Incompatible: the model does not write, or nothing says how its tokens become text.
    """
    if opened.manifest.model.task not in (None, "causal-lm"):
        raise Incompatible(
            f"run {opened.run_id} trains a model for {opened.manifest.model.task}; expected one that writes on from a "
            "text (causal-lm); load its folder with transformers"
        )

    def drawn(begin: Sequence[int], num_choices: int) -> Iterator[int]:
        options = {"num_tokens": max_tokens, "seed": seed, "num_choices": num_choices}
        return sample_tokens(model, begin, temperature=temperature, **options)

    if opened.tokenizer is not None:
        tokenizer = OpenTokenizer(opened.tokenizer)
        num_tokens, vocab_size = tokenizer.facts.vocab_size, opened.manifest.model.vocab_size
        if num_tokens > vocab_size:
            tokenizer.close()
            raise Incompatible(
                f"the tokenizer of run {opened.run_id} has {num_tokens} tokens, and its model {vocab_size}; expected "
                "no more tokens than the model has; tell the run's owner"
            )
        return _from_tokenizer(tokenizer, prompt, drawn)
    if not opened.manifest.data.has_byte_tokens or opened.manifest.model.vocab_size < NUM_BYTES:
        raise Incompatible(
            f"run {opened.run_id} reads tokens of its own ({opened.manifest.data.source}) and no tokenizer is beside "
            "the model; expected a run that reads bytes or brings its tokenizer; export the model as a folder"
        )
    # What a shell passed through undecoded comes back as the bytes it was.
    begin = prompt.encode("utf-8", "surrogateescape")
    return shown_text(drawn(begin or b"\n", NUM_BYTES), begin)


def _from_tokenizer(
    open_tokenizer: OpenTokenizer, prompt: str, drawn: Callable[[Sequence[int], int], Iterator[int]]
) -> Iterator[str]:
    with open_tokenizer as tokenizer:
        facts = tokenizer.facts
        readable = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        begin = tokenizer.encode([readable])[0] if readable else []
        tokens = drawn(begin or [facts.eos], facts.vocab_size)
        # The end of a text is no part of it.
        said = takewhile(lambda token: token != facts.eos, tokens)
        yield readable
        yield from spoken_text(said, begin, tokenizer.decode)
