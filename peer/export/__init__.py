"""The model taken home: a file, text from it, its held-out loss.

The files, each built on those above it:

    model_source.py  where a model is taken from: members or a checkpoint
    model_header.py  what a model file says of itself: every field checked, all under one digest
    model_file.py    a model as safetensors, with its config
    export.py        `peer export`, `peer sample`, `peer evaluate`
"""
