"""Rounds and state around the mailbox: the work of the network process while a peer trains. No torch.

The files, each built on those above it:

    fragment_memory.py    fragments over the shared memory, kept for a restarted process
    catch_up_meter.py     how far a download is, as events
    refusal_reports.py    refusals of remotes as events, however many there are
    reporter.py           reports what happens as events
    anchor_repairs.py     audits of this peer's own anchors: whose counts, and taking that one over
    trainer_desk.py       takes work from the trainer, hands it changes, never waits
    checkpoint_keeper.py  the network side of a checkpoint: asks for a moment, saves, finds what to restore
    graceful_leave.py     how a node leaves
    starting_state.py     where a peer starts from: memory, checkpoint, swarm, initial parameters
    node_inputs.py        who a node is, and what its owner gives it
    node.py               Node: membership, rounds and state around a mailbox
"""
