"""Looking at a run from outside: the commands that read and never train.

The files, each built on those above it:

    observer_entry.py         how somebody who only looks gets into a private run
    run_names.py              ids and names of the runs that have a folder here
    running_peer.py           the process that holds a data folder, and how it is asked to leave
    kept_manifest.py          the manifest of a run that is kept here
    ended_run.py              the end of a run, as far as it is known here or on its page, and what is left to do
    run_and_address.py        which run, and through whom: from flags, an invite, or a peer's data folder
    signed_work.py            whose work is in the signed commits that members keep
    observer.py               an observer of a run: manifest, members, anchors, signed commits
    run_page.py               what the page of a run says to those who want to join
    page_request.py           the request for that
    named_run.py              which run is meant: id, page, link, or a name known here
    known_addresses.py        addresses that nobody gave by hand: of earlier sessions, and of the run's page
    own_runs.py               what the data folders here say about runs
    receipts_verify.py        `peer receipts verify`
    status.py                 `peer status`
    profile_show_set_hide.py  `peer profile show`, `set`, `hide`
"""
