"""Transfer of anchors and files to peers that join or return: donor, joiner, and many donors at once.

The files, each built on those above it:

    messages.py          shared by both sides: requests, answers, digests of chunks
    snapshots.py         copies that a donor keeps while joiners fetch them
    chunk_assignment.py  which donor sends which chunks; port: chunks that survive a restart (pure)
    chunked_pieces.py    states and files that are fetched in chunks; port: destination of the chunks
    server.py            the donor's side; port: the files of the run
    client.py            single requests to one donor
    many_donors.py       one piece from many donors at once
"""
