"""The trainer process: the only home of torch, with the rooms that start one. It knows no network.

The rooms, from the bottom up:

    devices/  parameters and processes of one peer's devices
    model/    the built-in model, data, optimizers, evaluation
    loop/     the inner loop, and the trainer's end of the mailbox
"""
