"""Renders a run's chat template: the module of `peer.export.chat`'s child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from dht.ground.errors import Incompatible, UsageFault
from peer.limited_child.parent_link import ParentLink


def prepare(setup: dict[str, Any], parent: ParentLink) -> Any:
    """Answer the question of `chat_prompt`."""

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        return {"text": _rendered(Path(question["tokenizer"]), question["said"])}

    return answer


def _rendered(tokenizer: Path, said: str) -> str:
    library: Any = PreTrainedTokenizerFast
    try:
        loaded = library.from_pretrained(tokenizer.parent, tokenizer_file=str(tokenizer), local_files_only=True)
        template = loaded.chat_template
    except Exception as error:  # of its checks and of the tokenizers library, which have no root in common
        raise Incompatible(
            f"transformers cannot read the tokenizer in {tokenizer.parent} ({str(error)[:200]}); leave --chat away"
        ) from error
    if not template:
        raise UsageFault("--chat: the run brings no chat template; expected chat_template.jinja; leave --chat away.")
    try:
        message = {"role": "user", "content": said}
        text: str = loaded.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    except MemoryError:
        raise
    except Exception as error:  # whatever the template does
        raise Incompatible(
            f"the run's chat template fails with a message of one person ({str(error)[:200]}); leave --chat away"
        ) from error
    return text
