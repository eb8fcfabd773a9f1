"""A model as a folder that transformers loads, written and read.

The files, each built on those above it:

    model_header.py     what a model says of itself: every field checked, all under one digest
    output_place.py     whether a folder may be written to a place
    anchors.py          a run's anchors as named tensors, and the facts about them
    stored_weights.py   weights on disk, opened without reading them
    custom_module.py    a run's values in a module, also in one of the owner's code
    llama.py            the built-in model under a Llama's names
    byte_tokenizer.py   the tokenizer of runs that read bytes
    tokenizer_files.py  the run's tokenizer, or that one
    hf_architecture.py  an architecture of transformers with the anchors in it
    adapter_files.py    an adapter in peft's form
    folder_contents.py  what a folder holds, by the kind of model
    model_card.py       README.md of a folder
    model_folder.py     a model as a folder that transformers loads
    model_reading.py    the folder read again, every bit checked
"""
