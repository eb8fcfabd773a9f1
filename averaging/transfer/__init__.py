"""Anchors and files for those who join or return: a donor's side, a newcomer's side, and many donors at once.

The files, each built on those above it:

    messages.py          what both sides share: requests, answers, digests of chunks
    snapshots.py         copies that a donor keeps while somebody fetches them
    chunk_assignment.py  which chunks come from whom; port: chunks that outlive the process that fetched them (pure)
    chunked_pieces.py    what is fetched in chunks; port: where the chunks go
    server.py            the donor's side; port: the files that it gives
    client.py            single requests to one donor
    many_donors.py       one piece from many donors at once
"""
