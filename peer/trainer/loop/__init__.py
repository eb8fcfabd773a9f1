"""The inner loop of a peer, built in or anybody's own, and the trainer's end of the mailbox.

The files, each built on those above it:

    several_optimizers.py  the optimizers of one module as one: when an inner step is over
    absolute_state.py      values of parameters that optimizers keep, and that move with them
    inner_step.py          one inner step on all of a peer's devices
    mailbox_link.py        measures local work, sends it, merges what comes back
    checkpoint_values.py   any state as JSON and torch's tensors in safetensors files, without pickle
    checkpoint_portion.py  a checkpoint's tensors, as far as one process holds them
    trainer_checkpoint.py  the trainer's part of a checkpoint: when, counts, random states
    local_training.py      training as a peer, for any module, optimizer and loop
    trainer.py             the built-in inner loop
    rank_process.py        what each further process of a peer does

Sources: cosine (arXiv 1608.03983), clipping by the global norm (arXiv 1211.5063).
"""
