"""Pictures of a scene as lines of text, for a width and a height.

The files, each built on those above it:

    flow.py           lines that fit, without cut sentences
    curve.py          curves of braille dots
    training_face.py  a trainer's figures, loss, news and people
    other_faces.py    details, addresses, help
    seed_face.py      a seed's command to share, and what it gave
    loading_face.py   the checklist
    goodbye.py        what stays when a peer has left
"""
