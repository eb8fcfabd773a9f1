"""Architectures of Hugging Face's transformers as the model of a run (`model.kind = "hf"`).

The library is an extra: it is imported inside functions, and its absence is a sentence. No code of anybody else is
ever loaded: an architecture is one of the library's own, described by a config text in the manifest.

The files, each built on those above it:

    library_modules.py       a config text as a module of the library, in whatever process asks
    sizes_child.py           does that in a limited child, passes a few tokens, and answers with names and shapes
    architecture.py          does that once the child has: a config text as a module of the library
    initial_values.py        the architecture's own initialisation, with the same bits on every machine
    base_weights.py          given weights: their digest, the folder or the hub they come from
    adapter.py               LoRA
    task_losses.py           the loss of a task, for the inner loop
    trial_child.py           one step of a new run's model at full context, in a limited child
    trial.py                 whether a new run's model can be trained, and with which context
    run_model.py             the model of any run that `peer join` trains
    manifest_from_config.py  what `peer init --model` writes about a folder or a config file
"""
