"""The async shell around the round machines: it performs their effects on links, and reports what happened.

The files, each built on those above it:

    exchange_ports.py    what an exchange is given, and what its roles share
    result_search.py     asks for results that did not come by themselves
    audit.py             members recompute means that others made and signed
    usual_work.py        own work that only a fault of the machine can have made
    sending.py           the member: an offer, then the shards of its contribution
    reducing.py          the reducer: from contributions to a mean, and that mean on its way
    applying.py          everybody: from a commit to the next anchor, or an anchor from the swarm
    commit_questions.py  how many questions are answered with commits
    exchange.py          Exchange: messages to roles and machines, effects to roles
"""
