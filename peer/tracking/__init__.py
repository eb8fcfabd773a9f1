"""Values over time where people look at them: trackio, wandb, tensorboard or a CSV file (`--track`).

A process of its own has the library: whatever it prints, waits for or dies of, training goes on. A restart goes on in
the same record, which the run and the recorder's name give.

The files, each built on those above it:

    recorded_rows.py    what is recorded of a peer and of a run (pure)
    trackers.py         the record of a peer or run; each kind of tracker behind one interface
    tracker_process.py  the process that has one
    recorder.py         hands rows to that process and never waits
"""
