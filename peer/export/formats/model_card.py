"""The model card: what the model is, where it comes from and how it is loaded, as README.md beside it. Pure.

Only what the run itself says stands in it. Text of others is shown as text, whatever markup it holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dht.quantities import plural
from peer.config.manifest import RunManifest
from peer.export.formats.adapter_files import base_of
from peer.export.formats.anchors import Anchors
from peer.trainer.hf.tasks import CLASSIFIES
from peer.version import SOFTWARE

MAX_CONTRIBUTORS_SHOWN = 100

_TASKS = {
    "causal-lm": ("AutoModelForCausalLM", "text-generation"),
    "masked-lm": ("AutoModelForMaskedLM", "fill-mask"),
    "sequence-classification": ("AutoModelForSequenceClassification", "text-classification"),
    "image-classification": ("AutoModelForImageClassification", "image-classification"),
}
"""Task of a manifest -> what loads a model of it, and the task under which hubs list it."""
_BUILT_IN_TASK = "causal-lm"
_SPDX = re.compile(r"[a-z][a-z0-9.-]{1,39}")
"""Of a licence's identifier, as hubs list them."""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|&!~$])")


def model_card(anchors: Anchors, architecture: str, notes: Sequence[str] = (), *, has_tokenizer: bool) -> str:
    """README.md of the folder.

    Args:
        architecture: the class of transformers that loads it; empty: none does.
        notes: sentences about what one should know before use.
    """
    manifest = anchors.manifest
    parts = [_front(manifest, architecture), f"# {_shown(manifest.name)}"]
    if manifest.description:
        parts.append(_shown(manifest.description))
    parts += [_table(anchors, architecture), _loading(manifest, architecture, has_tokenizer), *notes]
    parts.append(_fragments(anchors))
    if anchors.contributors:
        parts.append(_contributors(anchors.contributors))
    parts.append(f"Written by {_shown(SOFTWARE)}. `run.json` has the signed manifest and every digest.")
    return "\n\n".join(parts) + "\n"


def _front(manifest: RunManifest, architecture: str) -> str:
    """What hubs read, in YAML; of others only what the manifest's patterns let through."""
    lines = ["---", "tags:", "- murmuration", "- decentralized-training"]
    if _SPDX.fullmatch(manifest.licence.lower()):
        lines.append(f"license: {manifest.licence.lower()}")
    if base := base_of(manifest).partition("@")[0]:
        lines.append(f"base_model: {base}")
    if architecture:
        library = "peft" if architecture == "PeftModel" else "transformers"
        lines += [f"library_name: {library}", f"pipeline_tag: {_TASKS[manifest.model.task or _BUILT_IN_TASK][1]}"]
    return "\n".join([*lines, "---"])


def held_out_text(anchors: Anchors) -> str:
    """``1.2500 nats per byte``, in what the run predicts; a custom run's code decides, so nothing is said of it."""
    if anchors.held_out_loss is None:
        return "not known"
    return loss_text(anchors.held_out_loss, anchors.manifest)


def loss_text(loss: float, manifest: RunManifest) -> str:
    """A loss with its unit, where the run's own code does not decide it."""
    return f"{loss:.4f} {manifest.loss_unit}".rstrip()


def _table(anchors: Anchors, architecture: str) -> str:
    manifest = anchors.manifest
    num_parameters = sum(facts.num_values for facts in anchors.facts)
    rows = [
        ("run", f"`{anchors.run_id}`"),
        ("manifest", f"SHA-256 `{manifest.hash.hex()}`, revision {manifest.revision}"),
        ("model", architecture or "a module from its owner's own code"),
        ("trained parameters", f"{num_parameters}"),
        ("taken from", _shown(anchors.origin)),
        ("tokens", f"{anchors.tokens} committed"),
        (
            "held-out loss",
            held_out_text(anchors)
            if anchors.held_out_loss is None
            else f"{held_out_text(anchors)}, as a member reported at version sum {anchors.held_out_version}",
        ),
        *_data_row(manifest),
        *(("organiser", _shown(text)) for text in (manifest.organiser,) if text),
        *(("homepage", _shown(text)) for text in (manifest.homepage,) if text),
        ("licence", _shown(manifest.licence) or "the run names none"),
    ]
    return "\n".join(["| what | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _data_row(manifest: RunManifest) -> list[tuple[str, str]]:
    """In a loop of its owner's the data is what its code reads; the manifest only has what every manifest has."""
    joined = manifest.model.kind == "gpt" or (
        manifest.model.task is not None
        and (manifest.model.task not in CLASSIFIES or manifest.data.label_field is not None)
    )
    return [] if not joined else [("data", f"`{manifest.data.source.replace('`', '')}`")]


def _loading(manifest: RunManifest, architecture: str, has_tokenizer: bool) -> str:
    if manifest.model.adapter is not None and architecture == "PeftModel":
        return _loading_adapter(manifest, has_tokenizer)
    if not architecture:
        return _loading_own_code(manifest)
    auto_class, task = _TASKS[manifest.model.task or _BUILT_IN_TASK]
    names = ["AutoTokenizer", auto_class] if has_tokenizer else [auto_class]
    code = [f"from transformers import {', '.join(sorted(names))}", "", f'model = {auto_class}.from_pretrained(".")']
    if has_tokenizer:
        code += [
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            'inputs = tokenizer("Once upon", return_tensors="pt")',
        ]
    if has_tokenizer and task == "text-generation":
        code.append("print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0]))")
    lines = ["## Load it", "", "```python", *code, "```", ""]
    if manifest.model.task != "image-classification":
        lines += [f"It was trained on sequences of {manifest.model.context} tokens.", _tokens(manifest, has_tokenizer)]
    return "\n".join(lines).rstrip()


def _loading_own_code(manifest: RunManifest) -> str:
    lines = ["## Load it", "", "```python", "import murmuration", "", "module = ...  # built by the code of the run"]
    lines += ['murmuration.load_export(module, ".")', "```", ""]
    if manifest.code is None:
        lines.append("The run does not say where its code is.")
    else:
        lines.append(f"The run says that its code is `{manifest.code}`. Nobody has checked it.")
    return "\n".join(lines)


def _loading_adapter(manifest: RunManifest, has_tokenizer: bool) -> str:
    auto_class, _ = _TASKS[manifest.model.task or _BUILT_IN_TASK]
    repository, _, revision = base_of(manifest).partition("@")
    base = f'"{repository}", revision="{revision}"' if repository else "BASE_FOLDER"
    assert manifest.model.init is not None
    lines = ["## Load it", "", "```python", "from peft import PeftModel", f"from transformers import {auto_class}", ""]
    lines += [f"base = {auto_class}.from_pretrained({base})", 'model = PeftModel.from_pretrained(base, ".")', "```", ""]
    lines.append(
        f"This is an adapter alone. It stands on the weights with the digest `{manifest.model.init.digest}`. "
        + _tokens(manifest, has_tokenizer)
    )
    return "\n".join(lines)


def _tokens(manifest: RunManifest, has_tokenizer: bool) -> str:
    if not has_tokenizer:
        return (
            "The run reads tokens that each volunteer brings: its tokenizer is no part of the run, nor of this folder."
        )
    if manifest.files:
        return "The tokenizer is the run's own, by its digest."
    return "Token n is byte n of the text in UTF-8. Byte 0, which no text contains, ends and pads texts."


def _fragments(anchors: Anchors) -> str:
    rows = [
        f"| {facts.index} | {facts.version} | `{facts.digest}` | {facts.lineage_tokens} | {facts.num_confirmed} |"
        for facts in anchors.facts
    ]
    head = ["| fragment | version | digest of anchor and momentum | tokens | members that confirmed it |"]
    return "\n".join(["## Versions", "", *head, "|---|---|---|---|---|", *rows])


def _contributors(contributors: tuple[str, ...]) -> str:
    rows = [f"- `{contributor}`" for contributor in contributors[:MAX_CONTRIBUTORS_SHOWN]]
    rest = len(contributors) - len(rows)
    more = [f"- and {rest} more"] if rest else []
    found = f"{plural(len(contributors), 'contributor')} had a machine in the run when this was taken home."
    return "\n".join(
        ["## Contributors", "", f"{found} The run's commits credit everybody else, too.", "", *rows, *more]
    )


def _shown(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)
