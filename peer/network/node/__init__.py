"""Rounds and state around the mailbox: the work of the network process while a peer trains. No torch.

The files, each built on those above it:

    fragment_memory.py    fragments in shared memory, kept for a restarted process
    reporter.py           reports what happens as events
    anchor_repairs.py     audits this peer's anchors, and replaces them by heavier ones
    trainer_desk.py       takes work from the trainer, sends it changes, never waits
    checkpoint_keeper.py  the network process's part of a checkpoint: requests, saves and finds checkpoints
    graceful_leave.py     the steps of an orderly leave
    starting_state.py     finds the state to start from: memory, checkpoint, swarm, initial parameters
    node_inputs.py        the identity and the ports of a node
    node.py               Node: membership, rounds and state around a mailbox
"""
