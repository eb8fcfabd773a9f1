"""`peer plan`: bytes, seconds and memory that a run needs at home. Pure except for the files it reads.

The files, each built on those above it:

    round_seconds.py     bytes and seconds of one round, counted on its frames
    memory_needs.py      memory and disk of a peer
    planning.py          the needs of a run at home
    plan_source.py       reads the run to plan from a run file, manifest or run record
    usual_home_needs.py  the needs of a run at a usual home, in a few figures
    report.py            tables and JSON
"""
