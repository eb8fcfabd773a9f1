"""What a person says, put as a run's chat template has it.

A template is a program of Jinja that the run's owner signed. The transformers library runs it in Jinja's sandbox, where
it can reach nothing but the messages and what it makes of them. It may never end, or take all memory, so it runs in a
child process with limits (`peer.export.chat_rendering`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dht.ground.errors import LocalFault
from peer.limited_child.child_limits import ChildLimits
from peer.limited_child.limited_child import LimitedChild
from peer.optional_libraries import needing

LIMITS = ChildLimits(memory_bytes=2 << 30, seconds=60.0)
"""The library loads the tokenizer beside the template; see `peer.trainer.data.tokenizing.LIMITS`."""


def chat_prompt(tokenizer: Path, said: str) -> str:
    """The text after which an answer follows.

    Args:
        tokenizer: tokenizer.json; the template lies beside it, alone or in tokenizer_config.json.

    Raises:
        UsageFault: there is no template, or transformers is not installed.
        Incompatible: the template does not take a message of one person.
        LocalFault: it took more than `LIMITS`.
    """
    with needing("`peer sample --chat`", "transformers", "hf"):
        if find_spec("transformers") is None:
            raise ModuleNotFoundError(name="transformers")
    what, advice = f"the chat template beside {tokenizer}", "leave --chat away, and tell the run's owner"
    with LimitedChild("peer.export.chat_rendering", {}, LIMITS, what, advice) as child:
        answer, _ = child.ask({"tokenizer": str(tokenizer.absolute()), "said": said})
    text = answer.get("text")
    if not isinstance(text, str):
        raise LocalFault(f"{what} makes no text; expected some; {advice}")
    return text
