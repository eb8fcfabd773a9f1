"""Work that crosses from a device next to the computing: a stand-in device copies late, and only in order."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

from averaging.outer.fragment_layout import build_layout
from dht.ground.errors import LocalFault
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import MergeKind, WorkKind
from peer.trainer.devices import side_stream as side_streams
from peer.trainer.devices.side_stream import SideStream, side_stream
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.trainer.trainer_link import flat, fragments_joined, link_of, module_of, move


class LateDevice:
    """Copies that take place when a mark behind them is waited for, or when `work` says so."""

    def __init__(self):
        self._copies = deque()
        self.num_begun = self.num_done = 0
        self._sums = []

    def copy(self, source, target):
        self._copies.append((source, target))
        self._sums.append(source.sum())
        target.fill_(float("nan"))  # what is read before its time is seen
        self.num_begun += 1

    def mark(self):
        total, self._sums = float(torch.stack(self._sums).sum()), []
        return LateMark(self, self.num_begun, total)

    def close(self):
        self.work()

    def work(self, until=None):
        while self._copies and (until is None or self.num_done < until):
            source, target = self._copies.popleft()
            target.copy_(source)
            self.num_done += 1


class LateMark:
    def __init__(self, device, number, total):
        self._device, self._number, self.total = device, number, total

    def query(self):
        return self._device.num_done >= self._number

    def synchronize(self):
        self._device.work(self._number)


def late_link(module, **options):
    device = LateDevice()
    return device, link_of(module, side=device, **options)


def test_work_is_posted_when_it_has_arrived_and_is_that_of_the_step_it_was_measured_after():
    module = module_of()
    device, link = late_link(module, num_fragments=1, sync_every=2)
    start = flat(module)
    move(module, 1)
    link.after_inner_step(10)
    move(module, 2)
    measured = flat(module)
    link.after_inner_step(10)
    assert device.num_begun
    assert not link.mailbox.outbox.take()
    assert link.mailbox.outbox.num_free() == 1
    move(module, 3)
    link.after_inner_step(10)
    assert not link.mailbox.outbox.take(), "the device has not copied anything yet"
    device.work()
    move(module, 4)
    link.after_inner_step(10)
    first = link.mailbox.outbox.take()[0]
    assert (first.kind, first.num_steps, first.num_tokens, first.inner_step) == (WorkKind.WORK, 2, 20, 2)
    assert np.array_equal(first.values, start - measured)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_counted_twice_however_late_the_device_is(seed):
    generator = torch.Generator().manual_seed(seed)
    module = module_of()
    device, link = late_link(module, num_fragments=3, sync_every=2)
    start, sizes = flat(module), link.mailbox.sizes
    sent, merged = [torch.zeros(size) for size in sizes], [torch.zeros(size) for size in sizes]
    tokens = [0] * 3

    def read_all():
        for message in link.mailbox.outbox.take():
            assert np.isfinite(message.values).all()
            sent[message.fragment] += torch.from_numpy(message.values)
            tokens[message.fragment] += message.num_tokens
            link.mailbox.outbox.release(message.slot)

    for step in range(40):
        move(module, 100 * seed + step)
        link.after_inner_step(10)
        match int(torch.randint(4, (), generator=generator)):
            case 0:
                device.work()
            case 1:
                read_all()
            case 2:
                values = torch.randint(-64, 65, (sizes[1],), generator=generator) / 1024.0
                if link.mailbox.inbox.try_post(MergeKind.ADD, 1, values.numpy(), version=1):
                    merged[1] += values
    while not link.flush():
        read_all()
    read_all()
    total = fragments_joined(link, lambda index: sent[index] - merged[index])
    assert torch.equal(start - flat(module), total)
    assert tokens == [400] * 3


def test_a_rebase_counts_work_that_was_still_on_its_way():
    module = module_of()
    device, link = late_link(module, num_fragments=1, sync_every=1)
    start = flat(module)
    move(module, 1)
    link.after_inner_step(10)
    work = start - flat(module)
    shown = torch.ones_like(start)
    assert link.mailbox.inbox.try_post(MergeKind.REBASE, 0, shown.numpy(), version=1)
    link.poll()
    assert torch.equal(flat(module), shown - work)
    assert np.array_equal(link.mailbox.outbox.take()[0].values, work)
    assert device.num_done == device.num_begun


def test_work_whose_sum_alone_overflows_is_sent():
    module = module_of()
    _, link = late_link(module, num_fragments=1, sync_every=1)
    with torch.no_grad():
        next(module.parameters()).view(-1)[:4] = 3e38
    link.after_inner_step(10)
    link.settle()
    with np.errstate(over="ignore"):
        assert np.isinf(link.mailbox.outbox.take()[0].values.sum())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_work_that_is_not_finite_is_not_sent(value):
    module = module_of()
    _, link = late_link(module, num_fragments=1, sync_every=1)
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = value
    link.after_inner_step(10)
    with pytest.raises(LocalFault, match=r"0\.weight.* after inner step 1; expected finite.*nothing of it was sent"):
        link.settle()
    assert not link.mailbox.outbox.take()
    assert link.mailbox.outbox.num_free() == 2


class Runtime:
    """The driver's half of pinning."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.calls = []

    def cudaHostRegister(self, address, num_bytes, flags):
        self.calls.append(("pin", address, num_bytes, flags))
        return self.outcome

    def cudaHostUnregister(self, address):
        self.calls.append(("let go", address))
        return 0


class Stream:
    fault = None

    def __init__(self, device):
        pass

    def synchronize(self):
        if self.fault is not None:
            raise RuntimeError(self.fault)


class OnDevice:
    def __init__(self, device):
        pass

    __enter__ = __exit__ = lambda self, *_: None


def stream_with(monkeypatch, runtime, memory):
    monkeypatch.setattr(side_streams, "_runtime", lambda: runtime)
    monkeypatch.setattr(side_streams, "_forget_error", lambda device: runtime.calls.append(("forget", device.index)))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", OnDevice)
    return SideStream(torch.device("cuda:0"), memory)


@pytest.mark.parametrize(("outcome", "is_pinned"), [(0, True), (2, False)])
def test_memory_is_pinned_once_and_let_go_once(monkeypatch, caplog, outcome, is_pinned):
    runtime = Runtime(outcome)
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    stream = stream_with(monkeypatch, runtime, memory)
    stream.close()
    stream.close()
    pinned = ("pin", memory.data_ptr(), 1 << 20, 0)
    assert runtime.calls == [pinned, ("let go", memory.data_ptr()) if is_pinned else ("forget", 0)]
    assert ("could not pin 1 MB" in caplog.text) != is_pinned


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_same_work_arrives():
    module = module_of().to("cuda")
    shapes = [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]
    layout = build_layout(shapes, 1, "balanced")
    mailbox = Mailbox.in_process(layout.sizes)
    stream = side_stream(torch.device("cuda"), torch.from_numpy(mailbox.slot_memory))
    link = TrainerLink(module.named_parameters(), layout, mailbox, sync_every=1, pause=None, side=stream)
    start = flat(module).cpu()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5)
    link.after_inner_step(10)
    measured = flat(module).cpu()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25)
    link.settle()
    assert np.array_equal(mailbox.outbox.take()[0].values, start - measured)
    stream.close()
