"""Pictures of a scene as lines of text, for a width and a height.

The files, each built on those above it:

    text_lines_that_fit.py  lines that fit, without cut sentences
    curve.py                curves of braille dots
    health_sentence.py      that all is well, or what is not
    training_screen.py      a trainer's figures, loss, news and people
    key_screens.py          details, addresses, help
    seed_screen.py          a seed's command to share, and what it gave
    loading_screen.py       the checklist
    goodbye.py              what stays when a peer has left
"""
