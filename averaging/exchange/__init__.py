"""The async shell around the round machines: it performs their effects on links, and reports what happened.

The files, each built on those above it:

    background.py     tasks that nobody waits for
    bulk_frames.py    frames with payloads: contributions and means
    offering.py       how a fragment's work begins its next round
    committing.py     what moves an anchor here, and what its owner is told
    looking_ahead.py  works out the next digest when nobody else wants the fragment
    result_search.py  asks for results that did not come by themselves
    audit.py          members recompute means that others made and signed
    cell_exchange.py  the bytes of two-level rounds: means of cells, and the means of those
    delivery.py       means in flight: which of them somebody else has
    exchange.py       Exchange: messages in, effects out
"""
