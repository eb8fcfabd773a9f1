"""What a revision says to people."""

from __future__ import annotations

import pytest

from peer.config.access_sections import ChangeSection
from peer.config.manifest import RunManifest
from peer.events.peer_events import RunChanged
from peer.network.membership.manifest_revisions import describe_changes

NOTE = ChangeSection(at_version=0, note="raised H to 40", noted_at=5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ((NOTE,), 'The organiser notes: "raised H to 40".'),
        (
            (ChangeSection(at_version=7, outer_lr=0.5), NOTE),
            'Adopted revision 3 of the manifest: outer_lr 0.5 from version 7; the organiser notes: "raised H to 40".',
        ),
        (
            (NOTE.model_copy(update={"outer_lr": 0.5}),),
            'Adopted revision 3 of the manifest: outer_lr 0.5 at once; the organiser notes: "raised H to 40".',
        ),
    ],
)
def test_a_note_is_the_organisers_word_and_no_change(changes: tuple[ChangeSection, ...], sentence: str) -> None:
    held = RunManifest(name="ours", revision=2)
    newer = held.model_copy(update={"revision": 3, "changes": changes})
    assert RunChanged(revision=3, changes=describe_changes(newer, held)).sentence() == sentence
