"""What tests share; nothing here is a test.

The files, each built on those above it:

    tiers.py              what each tier runs: folders, samples, times
    clock.py              a clock that stands still
    records.py            a peer's record, for tests that care about a few fields
    any_records.py        any records of three peers, for hypothesis
    fresh_interpreter.py  programs for processes that have imported nothing yet
    host_contract.py      what every Host must do, whatever carries its bytes
    memory_networks.py    small simulated networks
    limited_host.py       a simulated host with its owner's upload limit
    paced_line.py         a home line in virtual time
    network_spaces.py     network namespaces: a line between two machines that can be cut
    level_swarm.py        peers that publish and read by levels, over dictionaries
    notaries.py           signatures for peers that have no keys
    codec_data.py         what codec tests feed to codecs
    cell_frames.py        messages of two-level rounds for hypothesis
    commit_log.py         a log of commits, applied by every peer
    checkpoint_peer.py    one peer without a network, both sides of whose checkpoints are in this process
    web_bundle.py         whether the dashboard's bundle is there to be tested
    rounds/               swarms of round machines and of exchanges
    simulated/            simulated swarms with peers that steal or hinder
    chaos/                random faults, and the books that are kept beside the code
    processes/            real `peer` processes
    dashboard/            a dashboard with a past
"""
