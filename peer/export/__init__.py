"""Exports of a model as a folder, samples from it, and its validation loss.

    formats/  the folder, written and read

The files, each built on those above it:

    model_source.py       the source of a model: an exported folder, members or a checkpoint
    run_anchors.py        a run's anchors, from its members or a checkpoint
    opened_model.py       a model ready for use, from any source
    hub_push.py           uploads a folder to the Hugging Face Hub
    export.py             `peer export`
    sample.py             `peer sample`: tokens drawn from a model, as text
    sampling_process.py   a process that writes samples for a page
    limited_tokenizer.py  a transformers tokenizer whose work is done by a limited child
    evaluate.py           `peer evaluate`
"""
