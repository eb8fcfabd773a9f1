"""A model as a folder that transformers loads, written and read.

The files, each built on those above it:

    model_header.py     the facts about a model: every field checked, all under one digest
    output_place.py     checks whether a folder may be written to a place
    anchors.py          a run's anchors as named tensors, and the facts about them
    stored_weights.py   weights on disk, opened without reading them
    custom_module.py    fills a module, also of the owner's code, with a run's values
    llama.py            the built-in model under a Llama's names
    tokenizer_files.py  the run's tokenizer, or the byte tokenizer
    hf_architecture.py  an architecture of transformers with the anchors in it, or its adapter in the format of peft
    model_card.py       README.md of a folder
    model_folder.py     the contents of a folder, by the kind of model, and how they are written
    model_reading.py    reads the folder, and checks every bit
"""
