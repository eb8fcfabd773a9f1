"""What a person says, put as a run's chat template has it.

A template is a program of Jinja that the run's owner signed. The transformers library runs it in Jinja's sandbox, where
it can reach nothing but the messages and what it makes of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dht.errors import Incompatible, UsageFault
from peer.optional_libraries import needing


def chat_prompt(tokenizer: Path, said: str) -> str:
    """The text after which an answer follows.

    Args:
        tokenizer: tokenizer.json; the template lies beside it, alone or in tokenizer_config.json.

    Raises:
        UsageFault: there is no template, or transformers is not installed.
        Incompatible: the template does not take a message of one person.
    """
    with needing("`peer sample --chat`", "transformers", "hf"):
        from transformers import PreTrainedTokenizerFast
    try:
        library: Any = PreTrainedTokenizerFast
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
    except Exception as error:  # whatever the template does
        raise Incompatible(
            f"the run's chat template fails with a message of one person ({str(error)[:200]}); leave --chat away"
        ) from error
    return text
