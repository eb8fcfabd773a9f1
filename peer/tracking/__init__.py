"""Values over time in trackio, wandb or a CSV file (`--track`).

A separate process has the library, so training continues when the library prints, waits or fails. A restart continues
the same record, which the run and the recorder's name identify.

The files, each built on those above it:

    recorded_rows.py    the recorded values of a peer and of a run (pure)
    trackers.py         the record of a peer or run; a CSV file, or a library with the interface of wandb
    tracker_process.py  the process that runs one
    recorder.py         passes rows to that process and never waits
"""
