"""What a model says: tokens drawn one after the other, and bytes shown as text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from peer.trainer.model.evaluation import evaluating

NUM_BYTES = 256
_SEEN_BEHIND = 8
"""Tokens: a character of UTF-8 has four bytes, and no tokenizer looks back further than a word."""
_UNFINISHED = "\ufffd"


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
