"""`peer demo`: a local swarm of real processes that trains on real text.

The files, each built on those above it:

    summary.py  what the logs of a demo say (pure)
    llama.py    a model of transformers for it, and the way home
    demo.py     the processes, the page, and the one JSON object at the end
"""
