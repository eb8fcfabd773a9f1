"""A small language that is cheap to make and quickly learned: the simulator's text. Pure."""

from __future__ import annotations

import numpy as np

from peer.trainer.model.data import Corpus, TokenStream

NUM_TOKENS = 40_000
NUM_SUCCESSORS = 3
"""Each token is followed by one of so many others, the first of them in two cases of three: about 0.8 nats."""


def markov_corpus(seed: int, vocab_size: int) -> Corpus:
    """Text of a first-order Markov chain; the last tenth is held out."""
    generator = np.random.Generator(np.random.PCG64(seed))
    successors = generator.integers(0, vocab_size, (vocab_size, NUM_SUCCESSORS))
    choices = generator.choice(NUM_SUCCESSORS, NUM_TOKENS, p=(0.7, 0.2, 0.1))
    jumps = generator.random(NUM_TOKENS) < 0.02  # out of short cycles
    anywhere = generator.integers(0, vocab_size, NUM_TOKENS)
    tokens = np.empty(NUM_TOKENS, np.uint16)
    token = 0
    for position in range(NUM_TOKENS):
        token = int(anywhere[position] if jumps[position] else successors[token, choices[position]])
        tokens[position] = token
    cut = NUM_TOKENS - NUM_TOKENS // 10
    return Corpus(
        TokenStream([("training", tokens[:cut])], vocab_size), TokenStream([("held out", tokens[cut:])], vocab_size)
    )
