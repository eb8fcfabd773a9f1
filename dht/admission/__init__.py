"""Which peers may open streams: the first frame of each stream, and membership in private runs. Pure.

The files, each built on those above it:

    tickets.py           tickets, passes and invites that the run's owner signs
    dated_proofs.py      proofs of membership, and the memory that refuses repeated ones
    admission.py         checks whether a remote is a member, by rules that may change during the run
    handshake_frames.py  the frames: hello, welcome, refusal
"""
