"""What tests share; nothing here is a test.

Three swarms stand behind most tests, each with more of the real parts than the one before: exchanges on a network in
memory (`rounds/exchange_swarm.py`), whole nodes and trainers in virtual time (`tests.simulator`), and processes on
loopback (`processes/process_swarm.py`). A test takes the first in which what it is about can go wrong. Everything else
is a stage for one part: replicas without a network, donors, a guard, a trainer.

The files, each built on those above it:

    tiers.py              what each tier runs: folders, samples, times
    clock.py              a clock that stands still
    waiting.py            waiting for other threads and processes
    records.py            a peer's record, for tests that care about a few fields
    late_library.py       libraries that only the worker loads that runs their tests
    no_compiler.py        torch that loads its compiler only when something compiles
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
    rounds/               swarms of exchanges, and stages of rounds
    processes/            real `peer` processes
    dashboard/            a dashboard with a past
"""
