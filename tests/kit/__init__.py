"""What tests share; nothing here is a test.

The files, each built on those above it:

    tiers.py              what each tier runs: folders, samples, times
    clock.py              a clock that stands still
    records.py            a peer's record, for tests that care about a few fields
    any_records.py        any records of three peers, for hypothesis
    fresh_interpreter.py  programs for processes that have imported nothing yet
    host_contract.py      what every Host must do, whatever carries its bytes
    notaries.py           signatures for peers that have no keys
    web_bundle.py         whether the dashboard's bundle is there to be tested
    terminals.py          terminals that are lost or stuck
    peer_events.py        events of one peer, and a terminal that is a string
    panels.py             the panel of a peer, as text and picture
    documents.py          the documents: their sections, tables, links and code blocks
    network/              networks, lines and records between peers
    averages/             work, codecs, commits and credit, as arrays and bytes
    trainer/              the trainer's side of a peer, and its checkpoints
    rounds/               swarms of round machines and of exchanges
    simulated/            simulated swarms with peers that steal or hinder
    chaos/                random faults, and the books that are kept beside the code
    processes/            real `peer` processes
    dashboard/            a dashboard with a past

Four swarms stand behind most tests, each with more of the real parts than the one before. A test takes the first in
which what it is about can go wrong:

    rounds/round_swarm.py       round machines joined by queues; `cell_swarm.py` is the same in cells
    rounds/exchange_swarm.py    exchanges, links and a network in memory, in virtual time; `chaos/` plays faults on it
    peer.simulation             whole nodes and trainers in virtual time; `simulated/` has peers that misbehave in it
    processes/process_swarm.py  `peer` processes on loopback

Everything else is a stage for one part: replicas without a network, views, lines, donors, a guard, a trainer.
"""
