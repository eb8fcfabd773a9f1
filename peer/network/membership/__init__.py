"""The members of the run: invites, announcements, the view of members, the owner's manifest and revisions.

The files, each built on those above it:

    invitation.py            an invite at the newcomer's side
    invite_users.py          who used which one-time invite, over restarts
    run_handshake_policy.py  the membership rule, as rounds and transfers want it
    membership.py            announces this peer, keeps the view, suspects the silent
    clock_check.py           compares this peer's clock with those of members, and waits where no member has its time
    reconnect.py             keeps a peer among others; reports when they are lost and found again
    mistyped_run_id.py       what a member of another run answers
    run_protocol.py          members give the manifest to newcomers
    way_out.py               does a network lead out of this machine
    members_here.py          addresses to dial: given, of peers on this machine now, of earlier sessions
    address_check.py         does anybody answer at an address, and is it this run; loads nothing heavy
    manifest_revisions.py    from which version on the owner's changes count, and for whom
    run_finding.py           finds the run's manifest, or says why it was not found
    profile_file.py          what a contributor chose to say, beside the key
    profile_publisher.py     publishes that from a running machine
"""
