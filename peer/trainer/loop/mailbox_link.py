"""The trainer's half of the mailbox, for any module: measures local work, sends it, merges received values.

For each parameter there is one float32 copy, `ref`: the point from which local work is measured. The unsent local work
of a fragment is L = ref - x (start minus end, the sign of a gradient), where x are the live parameters. A send writes L
to the outbox and sets ref := x. ADD and REBASE move x and ref together, so that merging never changes L. BLEND and SET
set ref to the new anchor. If no outbox slot is free, the send is postponed and L continues to grow, so no work waits or
is lost.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from averaging.arrays import F32
from averaging.finite_values import all_finite
from averaging.outer.fragment_layout import Fragment, FragmentLayout
from averaging.outer.fragment_schedule import SendSchedule
from dht.ground.clocks import steady_seconds
from dht.ground.errors import LocalFault, UsageFault
from dht.records.evaluation import Evaluation
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import Draft, MergeKind, MergeMessage, Outbox, WorkKind
from peer.trainer.devices.at_once import Change, at_once
from peer.trainer.devices.portion import Portion
from peer.trainer.devices.rank_orders import ALONE, OrderKind, Ranks
from peer.trainer.devices.side_stream import Arrival, SideStream

_POLL_SECONDS = 0.001
"""Pause between two polls of the mailbox while blocked: far below a round, far above the cost of a poll."""

REST_POLL_SECONDS = 0.05
"""Pause between two polls while the owner has paused the inner loop, when no urgent work is done."""
REST_FLUSH_SECONDS = 5.0
"""Time for the network process to take the work done so far, as on leaving."""

NUM_STEPS = 32
"""Size of the window. Fewer than half of its steps may be slow: recompilation, a validation after every third step. A
change of the machine's speed shows after 16 steps."""

_SMOOTHING = 0.95
"""Weight of the past in the running loss: an average over about 20 inner steps."""

_ANCHOR_READ_TRIES = 1000
"""Attempts with `_POLL_SECONDS` between them: a second, longer than any outer step needs to write an anchor."""


@dataclass(slots=True)
class _Progress:
    """The trainer's counts for one fragment."""

    num_steps: int = 0  # since the fragment's previous send
    num_tokens: int = 0
    base_version: int = 0  # of the live parameters when this block of work began
    applied_version: int = 0
    overdue: int = 0  # 0 or 1
    awaits_newer_than: int | None = None  # mode "sync": blocked until a version above this one arrives
    is_set: bool = False
    initial_posted: bool = False


def _setting(progress: _Progress, values: Mapping[str, Any]) -> list[Change]:
    return [partial(setattr, progress, name, value) for name, value in values.items()]


_KEPT = ("num_steps", "num_tokens", "base_version", "applied_version", "overdue")
"""The fields that a checkpoint contains."""


class StepSpeed:
    """Speed of the typical inner step: a median, weighted by tokens.

    A machine that slept, a validation, a checkpoint or a recompilation makes one or a few steps look slow. In a running
    mean one hour of sleep hides the speed for many steps; here it is one of `NUM_STEPS` values. At least half of the
    window's tokens took as long per token or longer, so a window is trained at no more than twice this speed;
    `averaging.trust.exclusions.TOKENS_MARGIN` allows for that.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=NUM_STEPS)

    def note(self, seconds: float, num_tokens: int) -> None:
        """Record the duration of an inner step of `num_tokens`; ignore steps without time or tokens."""
        if seconds > 0 and num_tokens > 0:
            self._steps.append((seconds / num_tokens, num_tokens))

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the typical step; 0 before the first step."""
        left = sum(num_tokens for _, num_tokens in self._steps) / 2
        for seconds_per_token, num_tokens in sorted(self._steps):
            left -= num_tokens
            if left <= 0:
                return 1 / seconds_per_token
        return 0.0


class WorkSender:
    """Moves local work from the device into the outbox: one draft per free slot, posted when its copies have finished.

    Args:
        side: copies while the device computes; None: `gather` has copied all values when it returns.
    """

    def __init__(self, outbox: Outbox, side: SideStream | None) -> None:
        self._outbox = outbox
        self.side = side
        self._under_way: deque[tuple[Fragment, Draft, dict[str, int], Arrival]] = deque()

    def try_send(
        self,
        fragment: Fragment,
        gather: Callable[[Tensor], None],
        facts: dict[str, int],
        then: Callable[[], list[Change]],
    ) -> bool:
        """Let `gather` begin to write a fragment's work into a free slot; return False if there is none.

        After this call the parameters may change, because the measured work is being copied.

        Args:
            facts: arguments for `Outbox.post`.
            then: returns the changes to make when the work passes to the outbox.

        Raises:
            LocalFault: the work is not finite and was not sent. With `side`, `settle` raises this instead.
        """
        # A send that an exception interrupted still holds its slot.
        self._outbox.drop_all_but([waiting[1] for waiting in self._under_way])
        draft = self._outbox.draft(fragment.index)
        if draft is None:
            return False
        gather(torch.from_numpy(draft.values))
        if self.side is None:
            self._check(fragment, draft, facts, is_finite=all_finite(draft.values))
            at_once([*then(), *self._outbox.posting(draft, WorkKind.WORK, **facts)])
        else:
            waiting = (fragment, draft, facts, self.side.mark())
            at_once([*then(), partial(self._under_way.append, waiting)])
        return True

    def settle(self, *, wait: bool = False) -> None:
        """Post drafts whose copies have finished, in order; with `wait`, all drafts.

        Raises:
            LocalFault: the work is not finite and was not sent.
        """
        while self._under_way:
            fragment, draft, facts, mark = self._under_way[0]
            if wait:
                mark.synchronize()
            elif not mark.query():
                return
            is_finite = math.isfinite(mark.total) or all_finite(draft.values)
            if not is_finite:
                self._under_way.popleft()
            self._check(fragment, draft, facts, is_finite=is_finite)
            at_once([self._under_way.popleft, *self._outbox.posting(draft, WorkKind.WORK, **facts)])

    def _check(self, fragment: Fragment, draft: Draft, facts: dict[str, int], *, is_finite: bool) -> None:
        if not is_finite:
            self._outbox.drop(draft)
            names = ", ".join(piece.name for piece in fragment.pieces[:3])
            raise LocalFault(
                f"the live parameters of fragment {fragment.index} ({names}) are NaN or infinite after inner "
                f"step {facts['inner_step']}; expected finite numbers; nothing of it was sent; lower the learning "
                "rate and join again, to continue from the state of other members or this peer's newest checkpoint"
            )


class TrainerLink:
    """Connects live parameters to a mailbox; one call after every inner step does all of the work.

    Args:
        parameters: (name, tensor) in any order; contiguous leaf tensors of any floating dtype on any device. They must
            stay the same tensor objects (do not move the module to a different device afterwards).
        layout: the division into fragments; names and lengths must fit `parameters`.
        mailbox: shared with the network process.
        sync_every: inner steps between two sends of a fragment, unless the network process sets a different number.
        mode: the manifest's averaging mode; only "sync" ever blocks after a send.
        clock: returns seconds; used for speed and waiting time.
        pause: sleeps while blocked. None never blocks: the caller checks `is_blocked` and calls `poll` (simulation).
        ref_device: device of the float32 references; None: the device of each parameter.
        start_inner_step: inner steps of earlier sessions.
        ranks: the processes of this peer, of which this one is rank 0.
        side: copies work while the device computes, if this process holds all of it; None: copies at once.

    Attributes:
        num_merges: number of messages merged into the live parameters.
        clock: returns seconds.

    Raises:
        LocalFault: a parameter of the layout is missing, has a different size, or is not contiguous.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        layout: FragmentLayout,
        mailbox: Mailbox,
        *,
        sync_every: int,
        mode: str = "carry",
        clock: Callable[[], float] = steady_seconds,
        pause: Callable[[float], None] | None = time.sleep,
        ref_device: torch.device | None = None,
        start_inner_step: int = 0,
        ranks: Ranks = ALONE,
        side: SideStream | None = None,
    ) -> None:
        self.layout = layout
        self.mailbox = mailbox
        self.portion = Portion(dict(parameters), layout, ref_device)
        self.ranks = ranks
        self._sender = WorkSender(mailbox.outbox, side)
        self._sync_every = sync_every
        self._schedule = SendSchedule(sync_every, len(layout.fragments), start_inner_step)
        self._blocks = mode == "sync"
        self._blends = mode == "streaming"
        self.clock = clock
        self._pause = pause
        self._progress = [_Progress() for _ in layout.fragments]
        self.num_merges = 0
        self._last_step_at: float | None = None
        self._speed = StepSpeed()
        self._counters = mailbox.trainer
        self._counters.inner_steps = start_inner_step

    @property
    def inner_steps(self) -> int:
        """Finished inner steps, including earlier sessions."""
        return self._counters.inner_steps

    @property
    def sync_every(self) -> int:
        """The current number of inner steps between two sends."""
        return self.mailbox.network.sync_every or self._sync_every

    @property
    def run_tokens(self) -> int:
        """The run's clock: tokens that the swarm has committed, as last reported by the network process."""
        return self.mailbox.network.run_tokens

    @property
    def learning_rate_factor(self) -> float:
        """The schedule's current learning rate factor: 0 to 1, the same on every peer."""
        return self.mailbox.network.learning_rate_factor

    @property
    def is_blocked(self) -> bool:
        """Whether a sent fragment waits for its next version (mode "sync"), and the network process has not requested a
        stop.
        """
        waiting = any(progress.awaits_newer_than is not None for progress in self._progress)
        return waiting and not self.mailbox.network.stop

    @property
    def stop_asked(self) -> bool:
        """Whether the network process requests the end of training."""
        return bool(self.mailbox.network.stop)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def accounts(self) -> list[dict[str, int]]:
        """Return for each fragment: steps and tokens since its previous send, base and applied version, and whether it
        is due.
        """
        return [{name: int(getattr(progress, name)) for name in _KEPT} for progress in self._progress]

    def resume(self, accounts: Sequence[Mapping[str, Any]]) -> None:
        """Resume with the `accounts` of an earlier session, whose parameters and references are already restored."""
        self._progress = [
            replace(progress, **{name: account[name] for name in _KEPT})
            for progress, account in zip(self._progress, accounts, strict=True)
        ]

    def wait_restored(self, timeout_seconds: float, stop: Callable[[], bool] = lambda: False) -> int:
        """Wait for the number of the checkpoint from which the network process resumes; 0 or less if there is none.

        Raises:
            LocalFault: the network process did not report the number within `timeout_seconds`.
        """
        network = self.mailbox.network
        self._wait(lambda: bool(network.restored_moment), timeout_seconds, stop, "the network process to read the disk")
        return network.restored_moment

    def note_pause(self) -> None:
        """Exclude the time until the next inner step from the measured speed."""
        self._last_step_at = None

    # --- start ---------------------------------------------------------------------------------------------------

    def try_post_initial(self) -> bool:
        """Post the initial parameters of as many fragments as there are free slots; return True once all are posted."""
        for fragment, progress in zip(self.layout.fragments, self._progress, strict=True):
            if not progress.initial_posted:
                progress.initial_posted = self.mailbox.outbox.try_post(
                    WorkKind.INITIAL, fragment.index, partial(self._write_live, fragment)
                )
        return all(progress.initial_posted for progress in self._progress)

    def post_initial(self, timeout_seconds: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Post all initial parameters, waiting for slots. Return False if `stop` or the network process ends training.

        Raises:
            LocalFault: the network process took no parameters for `timeout_seconds`.
        """
        return self._wait(self.try_post_initial, timeout_seconds, stop, "the network process to take the parameters")

    def try_ready(self) -> bool:
        """Apply received messages; return True once every fragment is SET or the network process allows training to
        begin.
        """
        said_ready = bool(self.mailbox.network.ready)  # read first: messages delivered before it are applied below
        self.poll()
        return said_ready or all(progress.is_set for progress in self._progress)

    def wait_ready(self, timeout_seconds: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the anchors to start from. Return False if `stop` or the network process ends training.

        Raises:
            LocalFault: the anchors did not arrive within `timeout_seconds`.
        """
        return self._wait(self.try_ready, timeout_seconds, stop, "the network process to deliver the anchors")

    # --- every inner step ----------------------------------------------------------------------------------------

    def after_inner_step(
        self,
        num_tokens: int,
        loss: float | None = None,
        learning_rate: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Count one inner step of `num_tokens` tokens, merge received values, send work that is due. Call outside
        autograd.

        Returns at once except in mode "sync" (and there only when `pause` was given), which waits until `stop`.

        Raises:
            LocalFault: live parameters are no longer finite.
        """
        now = self.clock()
        self._count(num_tokens, loss, now)
        self._counters.learning_rate = math.nan if learning_rate is None else learning_rate
        self.poll()
        due = self._schedule.after_step(self.sync_every)
        for fragment, progress in zip(self.layout.fragments, self._progress, strict=True):
            if progress.overdue or fragment.index in due:
                progress.overdue = int(not self._try_send(fragment, progress))
        if self._blocks:
            self.settle()
        self._counters.exchange_seconds += max(0.0, self.clock() - now)
        if self._blocks and self._pause is not None:
            while self.is_blocked and not stop():
                self._rest()
                self.poll()
        self._last_step_at = self.clock()

    def poll(self) -> None:
        """Post work whose copies have finished, and apply the inbox messages in order.

        Raises:
            LocalFault: live parameters were no longer finite when the work was measured.
        """
        self.portion.take_back()  # an exception may have interrupted the end of an anchor block
        self._sender.settle()
        for message in self.mailbox.inbox.take():
            self._apply(message)

    def flush(self, timeout_seconds: float = 0.0) -> bool:
        """Send all unsent work for an orderly end, waiting at most `timeout_seconds` for slots; return True if none is
        left.
        """
        started = self.clock()
        while True:
            self.poll()
            for fragment, progress in zip(self.layout.fragments, self._progress, strict=True):
                if progress.num_steps > 0:
                    self._try_send(fragment, progress)
            self.settle()
            is_done = all(progress.num_steps == 0 for progress in self._progress)
            if is_done or self._pause is None or self.stop_asked or self.clock() - started >= timeout_seconds:
                return is_done
            self._pause(_POLL_SECONDS)

    def settle(self) -> None:
        """Wait until all measured work is in the outbox: milliseconds, or no time without a side stream.

        Raises:
            LocalFault: the work is not finite.
        """
        self._sender.settle(wait=True)

    def finish(self) -> None:
        """Report to the network process that no inner step will follow."""
        self._counters.finished = 1

    @contextmanager
    def on_anchor(self) -> Iterator[int | None]:
        """Copy the anchors into the live parameters, then restore the same bits of x.

        Yields:
            sum of the anchor versions; None if an anchor stayed torn for a second (the network process is being
            restarted), in which case the live parameters are meaningless inside the block.
        """
        if self.ranks.is_sharded:
            self.ranks.order(OrderKind.MEASURE)
        try:
            self.portion.put_aside()
            versions = [self._show_anchor(fragment) for fragment in self.layout.fragments]
            known = [version for version in versions if version is not None]
            is_whole = len(known) == len(versions)
            if self.ranks.is_sharded:
                self.ranks.order(OrderKind.LOSS, is_whole)
            yield sum(known) if is_whole else None
        finally:
            self.portion.take_back()
            self.note_pause()

    @torch.no_grad()
    def evaluate_on_anchor(self, evaluate: Callable[[], float]) -> Evaluation | None:
        """Call `evaluate` on the anchors (see `on_anchor`), and write the returned loss to the mailbox.

        Returns:
            None if an anchor was torn.

        Raises:
            UsageFault: `evaluate` is not a function, or does not return a number.
        """
        if not callable(evaluate):
            raise UsageFault(f"evaluate got {evaluate!r}; expected a function that returns the loss; pass a function.")
        with self.on_anchor() as versions:
            if versions is None:
                return None
            found = evaluate()
        try:
            loss = float(found)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise UsageFault(
                f"the function given to evaluate returned {found!r}; expected one number; return loss.item()."
            ) from error
        self._counters.evaluation_loss, self._counters.evaluation_version = loss, versions
        return Evaluation(loss, versions)

    @property
    def is_unmeasured(self) -> bool:
        """Whether the anchors are newer than those of the last measurement."""
        versions = sum(state.version for state in self.mailbox.states)
        return versions > self._counters.evaluation_version

    # --- inside --------------------------------------------------------------------------------------------------

    def _count(self, num_tokens: int, loss: float | None, now: float) -> None:
        counters = self._counters
        if self._last_step_at is not None:
            self._speed.note(now - self._last_step_at, num_tokens)
            counters.tokens_per_second = self._speed.tokens_per_second
        if loss is not None and math.isfinite(loss):
            past = counters.train_loss
            counters.train_loss = loss if math.isnan(past) else _SMOOTHING * past + (1 - _SMOOTHING) * loss
        for progress in self._progress:
            progress.num_steps += 1
            progress.num_tokens += num_tokens
        counters.tokens += num_tokens
        counters.inner_steps += 1

    @torch.no_grad()
    def _try_send(self, fragment: Fragment, progress: _Progress) -> bool:
        if progress.num_steps == 0:
            return True
        facts = {
            **{name: getattr(progress, name) for name in ("num_steps", "num_tokens", "base_version")},
            "inner_step": self.inner_steps,
        }
        gather = partial(self.ranks.gather_work, self.portion, fragment, side=self._sender.side)
        begun = {
            "num_steps": 0,
            "num_tokens": 0,
            "base_version": progress.applied_version,
            "awaits_newer_than": progress.applied_version if self._blocks else None,
        }

        def measuring_anew() -> list[Change]:
            return [*self.ranks.measuring_anew(self.portion, fragment), *_setting(progress, begun)]

        return self._sender.try_send(fragment, gather, facts, measuring_anew)

    @torch.no_grad()
    def _apply(self, message: MergeMessage) -> None:
        """Merge a message and free its slot. An interrupted merge continues when the same message is read again."""
        self.num_merges += 1
        progress = self._progress[message.fragment]
        release = self.mailbox.inbox.releasing(message.slot)
        if self._blends and message.kind == MergeKind.REBASE and message.version == progress.applied_version:
            # x contains a share of every anchor it was blended with, including the newest.
            progress.is_set = True
            release()
            return
        is_whole = message.kind in (MergeKind.SET, MergeKind.REBASE)
        posted = self._unabsorbed(message.fragment) if is_whole else []
        fragment, values = self.layout.fragments[message.fragment], torch.from_numpy(message.values)
        for work in posted:
            values = values - work
        self.ranks.merge(self.portion, fragment, message.kind, values, message.sequence)
        merged: dict[str, Any] = {"applied_version": message.version}
        if message.kind == MergeKind.SET:
            # Sent work will not come back.
            merged |= {"num_steps": 0, "num_tokens": 0, "awaits_newer_than": None}
        if is_whole:
            merged["is_set"] = True
        if message.kind in (MergeKind.SET, MergeKind.BLEND) or progress.num_steps == 0:
            merged["base_version"] = message.version
        if progress.awaits_newer_than is not None and message.version > progress.awaits_newer_than:
            merged["awaits_newer_than"] = None
            now = self.clock()
            if self._pause is None and self._last_step_at is not None:
                self._counters.wait_seconds += max(0.0, now - self._last_step_at)
            self._last_step_at = now
        self.mailbox.states[message.fragment].applied_version = message.version
        at_once([*_setting(progress, merged), release])

    def _unabsorbed(self, fragment: int) -> list[torch.Tensor]:
        """Return work in the outbox that is no longer in L, and that the network process has not yet absorbed."""
        self.settle()
        absorbed = self.mailbox.states[fragment].absorbed_sequence
        return [
            torch.from_numpy(message.values)
            for message in self.mailbox.outbox.take()
            if message.kind == WorkKind.WORK and message.fragment == fragment and message.sequence > absorbed
        ]

    def _write_live(self, fragment: Fragment, slot: F32) -> None:
        self.ranks.gather_live(self.portion, fragment, torch.from_numpy(slot))

    def _show_anchor(self, fragment: Fragment) -> int | None:
        state = self.mailbox.states[fragment.index]
        anchor = torch.from_numpy(state.anchor)
        for _ in range(_ANCHOR_READ_TRIES if self._pause is not None else 1):
            version = state.version
            if not state.writing:
                self.ranks.show(self.portion, fragment, anchor)
                if not state.writing and state.version == version:
                    return version
            if self._pause is not None:
                self._pause(_POLL_SECONDS)
        return None

    def _rest(self) -> None:
        assert self._pause is not None
        before = self.clock()
        self._pause(_POLL_SECONDS)
        self._counters.wait_seconds += max(0.0, self.clock() - before)

    def wait_for_data(self, *, is_first: bool) -> float:
        """Pause briefly because no data is present; return the seconds. `is_first`: whether this begins a new wait.

        Raises:
            LocalFault: this link has no `pause`.
        """
        if self._pause is None:
            raise LocalFault("there is no data, and this link has no `pause`; expected all data at once")
        self._counters.data_waits += is_first
        before = self._counters.wait_seconds
        self._rest()
        waited = self._counters.wait_seconds - before
        self._counters.data_wait_seconds += waited
        return waited

    def note_reread(self) -> None:
        """Count a repeated read of old data."""
        self._counters.data_rereads += 1

    def rest(self, is_resting: Callable[[], bool], idle: Callable[[], None]) -> None:
        """Flush the work done so far, then call `idle` repeatedly while the owner pauses the inner loop.

        Raises:
            LocalFault: this link has no `pause`.
        """
        if self._pause is None:
            raise LocalFault("this link has no `pause`; expected a link that can wait")
        self.flush(REST_FLUSH_SECONDS)
        self._counters.tokens_per_second = 0.0
        self._counters.resting = 1
        try:
            while is_resting() and not self.stop_asked:
                idle()
                self._pause(REST_POLL_SECONDS)
        finally:
            self._counters.resting = 0
            self.note_pause()

    def _wait(
        self, is_done: Callable[[], bool], timeout_seconds: float, stop: Callable[[], bool], awaited: str
    ) -> bool:
        if self._pause is None:
            raise LocalFault("this link has no `pause`; poll try_post_initial() and try_ready() instead")
        started = self.clock()
        while not is_done():
            if stop() or self.stop_asked:
                return False
            if self.clock() - started > timeout_seconds:
                raise LocalFault(
                    f"waited {timeout_seconds:g} s for {awaited}; see its log lines above, or raise --join-timeout"
                )
            self._rest()
        return True
