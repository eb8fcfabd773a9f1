"""The tokenizer beside a model: the run's own files, or the byte tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault
from dht.ground.regular_files import read_regular
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.manifest import RunManifest
from peer.console.notices import notice
from peer.trainer.data.loaded_tokenizer import CONFIG_NAMES
from peer.trainer.data.tokenizing import OpenTokenizer

NUM_BYTES = 256
END_TOKEN = 0
_END = chr(END_TOKEN)


def byte_tokenizer_files(context: int) -> dict[str, bytes]:
    """Return `tokenizer.json` and `tokenizer_config.json` for a model with a context of `context` tokens.

    Token b is byte b, as in a byte-level run. An ASCII character is a token under its own name; all other characters
    fall back to their bytes, which are all 128 or more. Byte 0, which no text contains, ends and pads texts. Because
    its token has the byte itself as its name, no text can contain that name by accident.
    """
    return {
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": context,
                "clean_up_tokenization_spaces": False,
                "eos_token": _END,
                "pad_token": _END,
            }
        ),
    }


def _tokenizer() -> dict[str, Any]:
    vocabulary = {chr(byte) if byte < 128 else f"<0x{byte:02X}>": byte for byte in range(NUM_BYTES)}
    end = {"id": END_TOKEN, "content": _END, "special": True, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=1).encode() + b"\n"


TOKENIZER_CONFIG_NAME = CONFIG_NAMES[0]
MAX_CONFIG_BYTES = 4 << 20
"""Four times the largest published tokenizer_config.json."""

_COPIED = (
    *("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt"),
    *("merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja"),
)
"""Files of a run that an export copies. Other files are not copied, so that none replaces a file of the export."""
_CONFIG_FIELDS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    *("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "chat_template", "model_max_length"),
    *("add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces", "do_lower_case", "errors"),
    *("legacy", "model_input_names", "padding_side", "split_special_tokens", "strip_accents"),
    *("tokenize_chinese_chars", "truncation_side"),
)
"""Fields of a run's tokenizer_config.json that an export keeps; other fields may refer to code and files elsewhere."""
_ANY_CLASS = "PreTrainedTokenizerFast"
_CLASS_NAME = re.compile(r"[A-Za-z0-9_]{1,80}")


def tokenizer_files(manifest: RunManifest, run_files: Path | None) -> tuple[Mapping[str, bytes | Path], int | None]:
    """Return the files of an exported folder that turn text into tokens, and the token that ends texts.

    The files are contents by name, or the path to copy from. The token is None if unknown.

    Args:
        run_files: folder with the run's verified files; None: the run has none.
    """
    if manifest.tokenizer is None or run_files is None:
        if manifest.has_byte_tokens and manifest.model.vocab_size >= NUM_BYTES:
            return byte_tokenizer_files(manifest.model.context), END_TOKEN
        return {}, None
    files = run_file_copies(manifest, run_files)
    end = end_token_of(run_files / TOKENIZER_NAME)
    if any(file.name == TOKENIZER_CONFIG_NAME for file in manifest.files):
        config = _kept_config(_json_of(run_files / TOKENIZER_CONFIG_NAME))
    else:
        ends = {} if end is None else {"eos_token": end[0], "pad_token": end[0]}
        config = {"tokenizer_class": _ANY_CLASS, "model_max_length": manifest.model.context, **ends}
    files[TOKENIZER_CONFIG_NAME] = json.dumps(config, indent=2).encode() + b"\n"
    return files, None if end is None else end[1]


def run_file_copies(manifest: RunManifest, run_files: Path | None) -> dict[str, bytes | Path]:
    """Return the paths of the run's tokenizer files; no other file is copied."""
    names = [file.name for file in manifest.files if run_files is not None]
    return {name: run_files / name for name in names if run_files is not None and name in _COPIED}


def _kept_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run's tokenizer_config.json that refer to no code or files."""
    named = config.get("tokenizer_class")
    known = named if isinstance(named, str) and _CLASS_NAME.fullmatch(named) else _ANY_CLASS
    return {"tokenizer_class": known, **{name: config[name] for name in _CONFIG_FIELDS if name in config}}


def end_token_of(tokenizer: Path) -> tuple[str, int] | None:
    """Return the token that ends a text, as text and as a number; None if unknown, which is printed.

    The tokenizer is untrusted, so the limited child reads it.
    """
    try:
        with OpenTokenizer(tokenizer) as opened:
            return opened.decode([opened.facts.eos]), opened.facts.eos
    except LocalFault as fault:
        notice(f"The export specifies no token that ends a text: {fault}")
        return None


def _json_of(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none."""
    try:
        found = json.loads(read_regular(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
