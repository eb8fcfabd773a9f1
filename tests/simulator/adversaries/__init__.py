"""Hostile peers of the simulator; each file describes its kinds.

The files, each built on those above it:

    liars.py         hosts whose frames lie
    floods.py        peers that are a burden: floods, huge frames, slow reads, garbage
    claims.py        false claims: versions, lineages, tokens, speeds, shapes of records
    free_records.py  records of many keys of one host, which do no work
    insiders.py      lying reducers, leaders and donors; which kind a peer is
"""
