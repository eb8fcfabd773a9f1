"""The mailbox: order, back-pressure, restart, a real second process, refusal of what does not fit."""

from __future__ import annotations

import gc
import glob
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from dht.ground.errors import LocalFault
from peer.mailbox.mailbox import Mailbox, mailbox_num_bytes
from peer.mailbox.slots import WorkKind

SIZES = (5, 17, 1)


def test_a_fill_that_fails_leaves_the_slot_free():
    mailbox = Mailbox.in_process(SIZES)

    def fill(out):
        out.fill(math.nan)
        raise LocalFault("not finite")

    with pytest.raises(LocalFault):
        mailbox.outbox.try_post(WorkKind.WORK, 0, fill)
    assert mailbox.outbox.take() == []
    assert mailbox.outbox.num_free() == 2


def test_torn_state_shows_after_a_crash_and_not_after_success():
    mailbox = Mailbox.in_process(SIZES)
    with mailbox.states[0].changing() as state:
        assert state.writing == 1
        state.anchor.fill(1)
        state.version, state.digest = 3, bytes(range(32))
    assert (state.writing, state.version, state.digest) == (0, 3, bytes(range(32)))
    with pytest.raises(KeyboardInterrupt), mailbox.states[0].changing():
        raise KeyboardInterrupt
    assert mailbox.states[0].writing == 1


OTHER_PROCESS = """
import sys
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import MergeKind
mailbox = Mailbox.attach(int(sys.argv[1]), (5, 17, 1))
(message,) = mailbox.outbox.take()
with mailbox.states[1].changing() as state:
    state.anchor[:] = message.values * 2
    state.version = 1
mailbox.inbox.try_post(MergeKind.SET, 1, state.anchor, version=1)
mailbox.outbox.release(message.slot)
mailbox.network.run_tokens = 42
"""


def test_a_second_process_attaches_through_the_file_descriptor_and_nothing_is_left():
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(place)]

    def ours():
        return {name for place in places for name in glob.glob(f"{place}/*murmuration-mailbox*")}

    before = ours()
    mailbox = Mailbox.create(SIZES)
    mailbox.outbox.try_post(WorkKind.INITIAL, 1, np.arange(17, dtype=np.float32))
    subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(mailbox.fd)], pass_fds=(mailbox.fd,), check=True)
    assert mailbox.network.run_tokens == 42
    assert mailbox.outbox.num_free() == 2
    (message,) = mailbox.inbox.take()
    assert np.array_equal(message.values, 2 * np.arange(17))
    assert np.array_equal(mailbox.states[1].anchor, message.values)
    assert ours() == before
    again = Mailbox.attach(os.dup(mailbox.fd), SIZES)
    fd = mailbox.fd
    mailbox.close()
    mailbox.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    del mailbox
    gc.collect()
    assert again.states[1].version == 1
    again.close()


def test_without_memfd_an_unlinked_file_serves(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mailbox = Mailbox.create(SIZES)
    assert list(tmp_path.iterdir()) == []
    mailbox.states[0].anchor.fill(3)
    other = Mailbox.attach(os.dup(mailbox.fd), SIZES)
    assert (other.states[0].anchor == 3).all()
    mailbox.close()
    other.close()


@pytest.mark.parametrize("sizes", [(5, 17), (5, 17, 2), (17, 5, 1), (5, 17, 1, 1), (5, 18, 1)])
def test_another_layout_is_refused(sizes):
    mailbox = Mailbox.create(SIZES)
    with pytest.raises(LocalFault, match="different manifests"):
        Mailbox.attach(mailbox.fd, sizes)
    mailbox.close()


def test_foreign_memory_is_refused(tmp_path):
    mailbox = Mailbox.create(SIZES)
    os.pwrite(mailbox.fd, (99).to_bytes(8, "little"), 8)
    with pytest.raises(LocalFault, match="not a mailbox of version 4"):
        Mailbox.attach(mailbox.fd, SIZES)
    os.pwrite(mailbox.fd, b"garbage!", 0)
    with pytest.raises(LocalFault, match="not a mailbox"):
        Mailbox.attach(mailbox.fd, SIZES)
    mailbox.close()
    with open(tmp_path / "short", "w+b") as file:
        with pytest.raises(LocalFault, match="not a mailbox"):
            Mailbox.attach(file.fileno(), SIZES)
        fd = file.fileno()
    with pytest.raises(LocalFault, match="not a mailbox"):
        Mailbox.attach(fd, SIZES)


@pytest.mark.parametrize("sizes", [(), (3, 0), (-1,)])
def test_empty_layouts_are_refused(sizes):
    with pytest.raises(LocalFault):
        Mailbox.in_process(sizes)


def test_memory_is_what_the_documentation_says():
    sizes = (250_000,) * 4
    copies = mailbox_num_bytes(sizes) / (4 * sum(sizes))
    assert 4 <= copies < 4.01
