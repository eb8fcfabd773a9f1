"""Callbacks with which the training loops of other libraries join a run.

The files, each built on those above it. None is loaded by `import murmuration`:

    replicas.py          several processes that train one module (DDP) as one peer: all get what the swarm sends
    callback_session.py  a session that callbacks enter and leave, whatever ends the loop
    transformers.py      `SwarmCallback` for `transformers.Trainer`, and for trl, whose trainers derive from it
    lightning.py         `SwarmCallback` for `lightning.Trainer`
"""
