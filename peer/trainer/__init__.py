"""The trainer process: the only home of torch, with the rooms that start one. It knows no network.

The rooms, from the bottom up:

    devices/  parameters and processes of one peer's devices
    text/     text on the disk and on the hub: files, documents, what is held out; no torch
    data/     tokens of text: what is trained on, and what is held out
    prepare.py  `peer data`: text in, shards or a tokenizer out
    model/    the built-in model, optimizers, evaluation
    hf/       architectures of Hugging Face's transformers, with initial values that are the same everywhere
    computing/  how this machine computes a step: precision, micro-batches, compiling
    loop/     the inner loop, and the trainer's end of the mailbox
"""
