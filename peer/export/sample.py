"""`peer sample`: what a model says."""

from __future__ import annotations

import sys

from dht.errors import Incompatible
from peer.export.model_source import ModelSource
from peer.export.opened import open_model
from peer.trainer.devices.select import select_device
from peer.trainer.model.sampling import NUM_BYTES, sample_tokens, shown_text, write_pieces


def sample_model(
    source: ModelSource, prompt: str, max_tokens: int, temperature: float, seed: int, device_name: str
) -> int:
    """Print what a model says after `prompt`, each character as soon as it is there; returns the exit code.

    Raises:
        LocalFault: the model cannot be had, or its tokens are not bytes.
    """
    device = select_device(device_name)
    opened = open_model(source)
    if not opened.reads_bytes or opened.manifest.model.vocab_size < NUM_BYTES:
        raise Incompatible(
            f"run {opened.run_id} reads tokens of its own ({opened.manifest.data.source}); expected a run that reads "
            "bytes; export the model and sample it with that tokenizer"
        )
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    # What a shell passed through undecoded comes back as the bytes it was.
    begin = prompt.encode("utf-8", "surrogateescape")
    tokens = sample_tokens(
        opened.model.to(device),
        begin or b"\n",
        num_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        num_choices=NUM_BYTES,
    )

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    write_pieces(shown_text(tokens, begin), write)
    return 0
