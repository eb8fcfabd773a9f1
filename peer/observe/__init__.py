"""Observes a run from outside: the commands that read and never train.

The files, each built on those above it:

    observer_entry.py         the admission of an observer to a private run
    run_names.py              ids and names of the runs with a folder on this machine
    running_peer.py           the process that holds a data folder, and how to ask it to leave
    kept_manifest.py          the stored manifest of a run
    ended_run.py              the end of a run, from this machine or its page, and the remaining options
    run_and_address.py        the run to observe and its addresses: from flags, an invite, or a peer's data folder
    signed_work.py            each member's work in signed commits
    observer.py               an observer of a run: manifest, members, anchors, signed commits
    run_page.py               the request to a run's page, and its answer to joiners
    named_run.py              resolves a run: id, page, link, or a name known here
    known_addresses.py        addresses from earlier sessions and from the run's page
    own_runs.py               the runs of the data folders on this machine
    receipts_verify.py        `peer receipts verify`
    status.py                 `peer status`
    profile_show_set_hide.py  `peer profile show`, `set`, `hide`
"""
