"""What is trained on: sources, the held-out part, and who reads what.

The files, each built on those above it:

    held_out.py   which text only measures the loss
    files.py      the files behind a source: regular ones, read in pieces
    positions.py  where the blocks of an inner step begin
    corpus.py     one stream to train on and one that is held out
"""
