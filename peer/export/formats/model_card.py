"""The model card: what the model is, where it comes from and how it is loaded, as README.md beside it. Pure.

Only what the run itself says stands in it. Text of others is shown as text, whatever markup it holds.
"""

from __future__ import annotations

import re

from dht.quantities import plural
from peer.config.manifest import RunManifest
from peer.export.formats.anchors import Anchors
from peer.version import SOFTWARE

MAX_CONTRIBUTORS_SHOWN = 100

_TASKS = {"LlamaForCausalLM": "text-generation"}
"""Class of transformers -> the task under which hubs list it."""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|&!~$])")


def model_card(anchors: Anchors, architecture: str, *, has_tokenizer: bool) -> str:
    """README.md of the folder.

    Args:
        architecture: the class of transformers that loads it; empty: none does.
    """
    manifest = anchors.manifest
    parts = [_front(architecture), f"# {_shown(manifest.name)}"]
    if manifest.description:
        parts.append(_shown(manifest.description))
    parts += [_table(anchors, architecture), _loading(anchors, architecture, has_tokenizer)]
    parts.append(_fragments(anchors))
    if anchors.contributors:
        parts.append(_contributors(anchors.contributors))
    parts.append(f"Written by {_shown(SOFTWARE)}. `run.json` has the signed manifest and every digest.")
    return "\n\n".join(parts) + "\n"


def _front(architecture: str) -> str:
    """What hubs read, in YAML; nothing of others stands in it."""
    lines = ["---", "tags:", "- murmuration", "- decentralized-training"]
    if architecture:
        lines.append("library_name: transformers")
    if architecture in _TASKS:
        lines.append(f"pipeline_tag: {_TASKS[architecture]}")
    return "\n".join([*lines, "---"])


def _table(anchors: Anchors, architecture: str) -> str:
    manifest = anchors.manifest
    num_parameters = sum(facts.num_values for facts in anchors.facts)
    loss = anchors.held_out_loss
    rows = [
        ("run", f"`{anchors.run_id}`"),
        ("manifest", f"SHA-256 `{manifest.hash.hex()}`, revision {manifest.revision}"),
        ("model", architecture or "a module from its owner's own code"),
        ("trained parameters", f"{num_parameters}"),
        ("taken from", _shown(anchors.origin)),
        ("tokens", f"{anchors.tokens} committed"),
        (
            "held-out loss",
            "not known"
            if loss is None
            else f"{loss:.4f} nats per token, as a member reported at version sum {anchors.held_out_version}",
        ),
        *_data_row(manifest),
    ]
    return "\n".join(["| what | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _data_row(manifest: RunManifest) -> list[tuple[str, str]]:
    """A custom run's data is what its code reads; its manifest only has what every manifest has."""
    return [] if manifest.model.kind == "custom" else [("data", f"`{manifest.data.source.replace('`', '')}`")]


def _loading(anchors: Anchors, architecture: str, has_tokenizer: bool) -> str:
    if not architecture:
        return (
            "## Load it\n\nThe trained parameters are flat fragments (`fragment.0`, ...) in the order of the owner's "
            "layout. The code that made the run loads them; it is not part of this folder."
        )
    if not has_tokenizer:
        return (
            "## Load it\n\n```python\nfrom transformers import AutoModelForCausalLM\n\n"
            'model = AutoModelForCausalLM.from_pretrained(".")\n```\n\n'
            "The run reads tokens that each volunteer brings. Its tokenizer is not part of the run, nor of this folder."
        )
    note = (
        f"Token n is byte n of the text in UTF-8. The model sees {anchors.manifest.model.context} tokens. Byte 0, "
        "which no text contains, ends and pads texts."
    )
    return (
        "## Load it\n\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained(".")\nmodel = AutoModelForCausalLM.from_pretrained(".")\n'
        'inputs = tokenizer("Once upon", return_tensors="pt")\n'
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0]))\n```\n\n" + note
    )


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
