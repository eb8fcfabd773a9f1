"""An example run.toml: `peer init --example > run.toml`."""

from __future__ import annotations

from typing import Final

EXAMPLE: Final = """\
# An example run: change any field, then run `peer init NAME --config run.toml`.
# Omitted fields have their defaults; docs/organiser/manifest.md lists every field.

description = "A small model that completes Python, for editors that are offline"    # its purpose, for volunteers
licence = "MIT"
# page = "https://run.example.org"        # address of `peer dashboard`; volunteers run `peer join URL`

[model]                                   # default: 4 layers, 4 heads, width 128; the values below give 27 M parameters
# num_layers = 8                          # with `--model`, omit these three fields
# d_model = 512
# num_heads = 8
context = 128                             # tokens that the model reads at once

[data]
source = "stdlib:"                        # Python's standard library, on every machine; or "text:": each peer's files
# source = "https://example.org/shards/meta.json"    # or shards that `peer data prepare` wrote

[training]
batch_size = 8
learning_rate = 0.003

[training.schedule]
tokens = 2_000_000_000                    # end of the page's progress bar, for the whole swarm; training continues

[averaging]
num_fragments = 4                         # the run averages the model in this many parts, one after another
sync_every = 30                           # inner steps between two rounds of one part; `peer plan` helps to choose
codec = "int4"                            # 4 bits for each value that a peer sends

[access]
mode = "open"                             # anyone can join; or "invite", with a `peer invite` for each person
"""
