"""The inner loop of a peer, built in or of a user's own code, and the trainer's end of the mailbox.

The files, each built on those above it:

    several_optimizers.py  combines the optimizers of one module, and detects the end of an inner step
    absolute_state.py      copies of parameters in optimizers, which merges move with the parameters
    inner_step.py          one inner step on all of a peer's devices
    mailbox_link.py        measures local work, sends it, merges the results
    checkpoint_values.py   any state as JSON and torch's tensors in safetensors files, without pickle
    checkpoint_portion.py  the part of a checkpoint's tensors in one process
    trainer_checkpoint.py  the trainer's part of a checkpoint: moment, counts, random states
    local_training.py      training as a peer, for any module, optimizer and loop
    trainer.py             the built-in inner loop
    rank_process.py        the main function of each additional process of a peer

Sources: cosine (arXiv 1608.03983), clipping by the global norm (arXiv 1211.5063).
"""
