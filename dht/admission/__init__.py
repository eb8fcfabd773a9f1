"""Which peers may talk to us: the first frame of every stream, and membership in private runs. Pure.

The files, each built on those above it:

    tickets.py           tickets, passes and invites that the run's owner signs
    dated_proofs.py      proofs of membership, and the memory that refuses them a second time
    admission.py         whether a remote is a member, by rules that may change while the run goes on
    handshake_frames.py  the frames: hello, welcome, refusal
"""
