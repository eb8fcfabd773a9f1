"""Finding peers and reaching them. Knows nothing of tensors.

Every room may import the files of this folder, the ports and the error tree:

    fields.py              strict checks of single values (pure)
    quantities.py          numbers as people read them (pure)
    delimited.py           messages with their length in front (pure)
    errors.py              the error tree, drawn once
    host.py                ports Host and Stream, PeerId
    store.py               port RecordStore, and the keys under which it holds peer records
    clocks.py              the clock that nobody sets and that goes on while the machine sleeps
    sleep_detection.py     whether this process slept, and since when (pure)
    task_ending.py         ends tasks, without waiting for one that does not
    background.py          tasks that nobody waits for
    compute.py             port Compute: where heavy arithmetic runs
    bounded_dictionary.py  a dictionary that keeps its newest entries
    allowances.py          how often each remote may do something (pure)
    waiting.py             waits for one of two things
    regular_files.py       reads files without waiting: no pipes, no devices; writes them whole

The rooms, from the bottom up:

    identity/   keys, PeerIds, run ids, addresses
    streams/    frames on a connection, limits of rate and memory
    records/    signed statements, and the view of the swarm that follows from them (pure)
    admission/  who may talk to us (pure)
    p2pd/       Host over hivemind's Go daemon: the data plane of peers
    pylibp2p/   Host in pure Python over py-libp2p, for observers
    simulated/  Host and RecordStore of a simulated network, in one process
    kademlia/   RecordStore over hivemind's DHTNode
    observer/   the host and the store of somebody who only looks

Sources: Kademlia (Maymounkov and Mazieres, 2002) for the lookup under the store. Ed25519 (RFC 8032) for every
signature. The libp2p peer id specification for the text form of a public key.
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
