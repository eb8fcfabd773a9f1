"""Async shell around the round machines: performs their effects on links, and reports events to them.

The files, each built on those above it:

    exchange_ports.py    ports and shared context of an exchange
    result_search.py     requests results that did not arrive unasked
    audit.py             recomputes means that other members made and signed
    usual_work.py        detects own work that only a fault of this machine can explain
    sending.py           member's role: sends an offer, then the shards of its contribution
    reducing.py          reducer's role: averages contributions and delivers the mean
    applying.py          role of all peers: applies commits to the anchor, or adopts an anchor from the swarm
    commit_questions.py  limits how many questions a member answers with commits
    exchange.py          Exchange: passes messages to roles and machines, and effects to roles
"""
