"""`peer sample`: what a model says."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dht.ground.errors import Incompatible
from peer.export.formats.byte_tokenizer import NUM_BYTES
from peer.export.model_source import ModelSource
from peer.export.opened_model import OpenedModel, open_model
from peer.trainer.data.tokenizing import OpenTokenizer
from peer.trainer.devices.device_choice import select_device
from peer.trainer.model.evaluation import evaluating

_SEEN_BEHIND = 8
"""Tokens: a character of UTF-8 has four bytes, and no tokenizer looks back further than a word."""
_UNFINISHED = "\ufffd"


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
    if opened.manifest.model.task != "causal-lm":
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


@torch.no_grad()
def sample_tokens(
    model: nn.Module, prompt: Sequence[int], *, num_tokens: int, temperature: float, seed: int, num_choices: int
) -> Iterator[int]:
    """Draw tokens after `prompt`; the same ones for the same seed, on the CPU also on every run.

    Args:
        model: a `LanguageModel`.
        prompt: at least one token; the model sees the last `context` ones of everything so far.
        temperature: divides the logits; 0 takes the likeliest token every time.
        num_choices: tokens from this number on are never drawn (a byte-level model with a larger vocabulary).

    Raises:
        ValueError: the prompt is empty.
    """
    if not prompt:
        raise ValueError("an empty prompt; expected at least one token")
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    language: Any = model
    context: int = language.context
    with evaluating(model):
        tokens = list(prompt)[-context:]
        past: Any = None
        num_seen = 0
        for _ in range(num_tokens):
            if num_seen < len(tokens) <= context and hasattr(model, "continued"):
                following, past = language.continued(torch.tensor([tokens[num_seen:]], device=device), past)
                num_seen = 0 if past is None else len(tokens)
            else:
                # The window moves on, and with it the place of every token in it.
                following = model(torch.tensor([tokens[-context:]], device=device))[:, -1]
            token = _draw(following[0, :num_choices].float().cpu(), temperature, generator)
            tokens.append(token)
            yield token


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    # Without its maximum a small temperature cannot overflow.
    shares = torch.softmax((logits - logits.max()).double() / temperature, dim=0)
    return int(torch.multinomial(shares, 1, generator=generator))


def shown_text(tokens: Iterable[int], prompt: bytes = b"") -> Iterator[str]:
    """The text of byte tokens, as soon as each character is whole; begins with the prompt.

    Bytes that are no UTF-8, and control characters that could move a terminal's cursor, become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    yield _printable(decoder.decode(prompt))
    for token in tokens:
        text = _printable(decoder.decode(bytes([token])))
        if text:
            yield text
    rest = _printable(decoder.decode(b"", final=True))
    if rest:
        yield rest


def spoken_text(tokens: Iterable[int], before: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """The text of a tokenizer's tokens, as soon as each character is whole.

    Tokens may be parts of a character, and may look otherwise at the beginning of a text: each is decoded behind those
    before it.

    Args:
        before: tokens that stand before them and are not shown.
        decode: the text of tokens.
    """
    seen = list(before)[-_SEEN_BEHIND:]
    shown = decode(seen)
    for token in tokens:
        seen.append(token)
        text = decode(seen)
        if text.endswith(_UNFINISHED) and len(seen) < 4 * _SEEN_BEHIND:
            continue
        if text[len(shown) :]:
            yield _printable(text[len(shown) :])
        seen = seen[-_SEEN_BEHIND:]
        shown = decode(seen)
    rest = decode(seen)[len(shown) :]
    if rest:
        yield _printable(rest)


def write_pieces(pieces: Iterable[str], write: Callable[[str], object]) -> None:
    """Write each piece at once, and a newline at the end when the text has none."""
    last = ""
    for piece in pieces:
        if piece:
            write(piece)
            last = piece[-1]
    if last != "\n":
        write("\n")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
