"""The members of the run: invites, announcements, the view of members, the owner's manifest and revisions.

The files, each built on those above it:

    invitation.py            reads and uses an invite on the newcomer's side
    invite_users.py          the users of one-time invites, stored across restarts
    run_handshake_policy.py  the membership rule as a handshake policy of rounds and transfers
    membership.py            announces this peer, keeps the view, suspects silent members
    clock_check.py           compares this peer's clock with those of members, and waits if none agrees
    reconnect.py             keeps a peer connected; reports when the members are lost and found again
    mistyped_run_id.py       the answer of a member of a different run
    run_protocol.py          members give the manifest to newcomers
    way_out.py               checks whether this machine has a route to other networks
    members_here.py          addresses to dial: given ones, of peers on this machine, of earlier sessions
    address_check.py         checks whether a member of this run answers at an address; loads nothing heavy
    manifest_revisions.py    the owner's changes, and the versions from which they apply
    run_finding.py           finds the run's manifest, or explains why it was not found
    profile_file.py          a contributor's profile, stored beside the key
    profile_publisher.py     publishes the profile from a running machine
"""
