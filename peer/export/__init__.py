"""Exports of a model as a folder, samples from it, and its validation loss.

    formats/  the folder, written and read

The files, each built on those above it:

    model_source.py       where a model is taken from: an exported folder, members or a checkpoint
    saved_anchors.py      a run's anchors, from a checkpoint
    members_anchors.py    a run's anchors, from its members
    opened_model.py       a model ready for use, wherever it came from
    hub_push.py           a folder on the Hugging Face Hub
    export.py             `peer export`
    sample.py             `peer sample`: tokens drawn from a model, as text
    sampling_process.py   a process that writes samples for a page
    limited_tokenizer.py  a tokenizer of transformers whose work a limited child does
    evaluate.py           `peer evaluate`
"""
