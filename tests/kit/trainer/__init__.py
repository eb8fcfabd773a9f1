"""The trainer's side of a peer, and its checkpoints.

The files, each built on those above it:

    shared_sizes.py     one child that measures all architectures of a test process
    saved_states.py     checkpoints of made-up fragment states
    checkpoint_peer.py  one peer without a network, both sides of whose checkpoints are in this process
    tiny_gpt.py         the built-in model, and an inner loop's settings, that train in milliseconds
    trainer_link.py     a small module, and its trainer's side of a mailbox
    lone_swarm.py       a session of an own loop without a network: hooks, counts and anchors
    hostile_tokenizers.py  tokenizer.json files that make their library panic, abort, or never end
    prepared_data.py    a small tokenizer, and shards made with it
    shard_server.py     those shards on a web server that breaks off and lies
    local_hub.py        data sets and models on a hub of this machine, which dies, stalls and lies
    parquet_footer.py   footers of Parquet files with made-up numbers
    canary_home.py      a home folder in which nothing may be opened, and a process that follows manifests there
    writable_hub.py     a hub of models that takes a pushed folder, refuses it, and cuts uploads off
    initial_anchors.py  anchors of a run that has just begun
    exported_models.py  a small built-in model with parameters of its own, as anchors that were taken home
    returning_peer.py   a peer that comes back to its checkpoint while the swarm has gone on
"""
