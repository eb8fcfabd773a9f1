"""Architectures of Hugging Face's transformers as the model of a run (`model.config`).

The library is an optional extra: functions import it, and raise a readable fault if it is missing. No third-party code
is ever loaded: an architecture is part of the library, and a config text in the manifest describes it.

The files, each built on those above it:

    library_modules.py       a config text as a module of the library, built in the calling process
    sizes_child.py           builds the module in a limited child, passes a few tokens, and returns names and shapes
    architecture.py          builds the module in this process after the child has succeeded
    initial_values.py        the architecture's own initialisation, with the same bits on every machine
    base_weights.py          pretrained weights: their digest, and the folder or hub of origin
    adapter.py               LoRA
    task_losses.py           the loss of a task, for the inner loop
    trial_child.py           one step of a new run's model at full context, in a limited child
    trial.py                 tests whether a new run's model can be trained, and with which context
    run_model.py             the model of any run that `peer join` trains
    manifest_from_config.py  the manifest section that `peer init --model` writes for a folder or a config file
"""
