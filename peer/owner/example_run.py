"""An example run.toml: `peer init --example > run.toml`."""

from __future__ import annotations

from typing import Final

EXAMPLE: Final = """\
# A run of your own: change what you like, then `peer init NAME --config run.toml`.
# What is left out has its default; docs/organiser/manifest.md has every field.

description = "A small model that completes Python, for editors that are offline"    # what it is for: people ask first
licence = "MIT"
# page = "https://run.example.org"        # where `peer dashboard` will show it: people join with `peer join URL`

[model]                                   # the built-in one has 4 layers, 4 heads and a width of 128; this has 27 M:
# num_layers = 8                          # with `--model` leave these three out
# d_model = 512
# num_heads = 8
context = 128                             # tokens that it reads at once

[data]
source = "stdlib:"                        # Python's own library, which every machine has; or "text:" for own files
# source = "https://example.org/shards/meta.json"    # or what `peer data prepare` made

[training]
batch_size = 8
learning_rate = 0.003

[training.schedule]
tokens = 2_000_000_000                    # of the swarm: the bar on the page fills up to them; nothing ends there

[averaging]
num_fragments = 4                         # the model is averaged in so many parts, one after the other
sync_every = 30                           # inner steps between two sends of one part; `peer plan` says what fits
codec = "int4"                            # 4 bits per value on the line

[access]
mode = "open"                             # everybody; or "invite", with `peer invite` for each person
"""
