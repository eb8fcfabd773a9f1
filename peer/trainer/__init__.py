"""The trainer process and the code that starts it. Only this package imports torch; it does not use the network.

The rooms, from the bottom up:

    devices/  parameters and processes of one peer's devices
    text/     text on the disk and on the hub: files, documents, held-out parts; no torch
    data/     tokens of text: the training stream, and the held-out stream
    prepare.py  `peer data`: turns text into shards or a tokenizer
    model/    the built-in model, optimizers, evaluation
    hf/       architectures of Hugging Face's transformers, with initial values that are the same on all machines
    computing/  how this machine computes a step: precision, micro-batches, compiling
    loop/     the inner loop, and the trainer's end of the mailbox
"""
