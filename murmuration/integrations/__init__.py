"""Callbacks with which the training loops of other libraries join a run.

The files, each built on those above it. `import murmuration` loads none of them:

    replicas.py          several processes that train one module (DDP) as one peer: all receive the swarm's updates
    callback_session.py  a session that callbacks enter and leave, however the loop ends
    transformers.py      `SwarmCallback` for `transformers.Trainer` and for the trainers of trl, its subclasses
    lightning.py         `SwarmCallback` for `lightning.Trainer`
"""
