"""Local training as a peer: any module, any torch optimizer, any loop.

    with LocalTraining(module, optimizer, link, seed=seed, peer_id=peer_id) as training:
        for positions in training.positions(batch_size, context, num_tokens):
            inputs, targets = stream.batch(positions, context)
            optimizer.zero_grad()
            loss = module.loss(inputs, targets)
            loss.backward()
            training.report(loss.item())
            optimizer.step()

A hook after the optimizers' steps does the rest: it counts, sends work that is due, and merges received values.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dht.ground.errors import LocalFault, UsageFault
from dht.records.evaluation import Evaluation
from peer.data_division.block_order import BlockOrder, Groups
from peer.trainer.data.context_blocks import OneGroup
from peer.trainer.loop.absolute_state import AbsoluteState
from peer.trainer.loop.checkpoint_portion import Stateful, check_state, warn_of_schedule
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.trainer.loop.several_optimizers import Optimizer, Optimizers
from peer.trainer.loop.trainer_checkpoint import TrainerKeeper
from peer.trainer.model.evaluation import evaluating

MAX_DATA_WAIT_SECONDS = 30.0
"""Longest wait for new data; then old data is read again. Reading twice costs less than an idle device."""

ANCHOR_TRIES = 30
"""Attempts to read an anchor that is not torn, a second each: enough to restart a network process that died."""

FLUSH_SECONDS = 5.0
"""Time on leaving for the network process to take the last work, far more than it needs for as many messages as there
are fragments, unless it is just being restarted.
"""


MAX_STEP_TOKENS = 2**30
"""Most tokens of one step. A contribution has the tokens of many steps, and peers reject one of more than 2^40."""


MAX_CALLS = 1000
"""Calls of a loop that reads and reports, without a step; accumulation makes a few hundred."""
PATIENCE_SECONDS = 60.0
"""Time after which fewer calls suffice: `FEW_CALLS` if parameters moved, `MANY_CALLS` if none has a gradient."""
FEW_CALLS, MANY_CALLS = 20, 100
_FIRST_CALLS = 10
"""No typical step makes this many calls; from then on parameters and gradients are observed."""
_NUM_SAMPLED = 64


class MissingSteps:
    """Detects loops that train outside their session: they step a different optimizer than `join` received.

    Counts the calls of a loop since the last step of its session.

    Args:
        parameters: the parameters that the session trains.
        clock: returns seconds.
    """

    def __init__(self, parameters: Sequence[Tensor], clock: Callable[[], float]) -> None:
        self._parameters = tuple(parameters)
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start counting again, because a step was taken, or the loop had nothing to do until now."""
        self._num_calls = 0
        self._since = self._clock()
        self._has_gradient = False
        self._before: list[Tensor] = []

    def called(self) -> None:
        """Count a call in which the loop has read data or reported.

        Raises:
            UsageFault: the loop must have taken steps that the session did not receive.
        """
        self._num_calls += 1
        if self._num_calls < _FIRST_CALLS:
            return
        if self._num_calls == _FIRST_CALLS:
            self._before = self._sampled()
        self._has_gradient = self._has_gradient or any(one.grad is not None for one in self._parameters)
        is_late = self._clock() - self._since >= PATIENCE_SECONDS
        if self._num_calls < MAX_CALLS and not (is_late and self._num_calls >= FEW_CALLS):
            return
        is_moved = any(not torch.equal(one, now) for one, now in zip(self._before, self._sampled(), strict=True))
        if is_moved or (not self._has_gradient and self._num_calls >= MANY_CALLS):
            what = "although the parameters changed" if is_moved else "and none of the parameters got a gradient"
            raise UsageFault(
                f"the loop has read data or reported {self._num_calls} times without a step of the optimizer that "
                f"join() was given, {what}; expected steps of that optimizer; nothing was counted or sent meanwhile; "
                "give join() the module and the optimizer that the loop uses, and join again after creating new ones"
            )
        if self._num_calls >= MAX_CALLS:
            self.begin()  # the loop accumulates gradients

    def _sampled(self) -> list[Tensor]:
        """Return copies of some values of the first, the middle and the last parameter, on their devices."""
        places = {0, len(self._parameters) // 2, len(self._parameters) - 1} if self._parameters else set()
        return [self._parameters[place].detach().reshape(-1)[:_NUM_SAMPLED].clone() for place in sorted(places)]


class StoppedWaiting(LocalFault):
    """The owner or the network process ended training while it waited for data."""


class LocalTraining:
    """Hooks an optimizer to a `TrainerLink`, and chooses the blocks of data that this peer reads.

    Args:
        module: the module to train; the optimizer must hold all of its parameters that the run averages.
        optimizer: an optimizer, a wrapper around one, or several; each must step once per inner step.
        link: made from the module's named parameters.
        seed: the manifest's seed; peer_id: this peer's id; together they determine the data.
        stop: called before every step; True ends `positions`.
        ready_timeout_seconds: on entering, post the initial parameters and wait this long for the anchors to start
            from. None if the caller does that itself (simulation).
        checkpoints: folder for the trainer's part of checkpoints; None: none are kept.
        state: additional objects to save, by name; see `peer.trainer.loop.checkpoint_portion.Stateful`.

    Attributes:
        stepped_by: the thread that took the last inner step; None before the first step.

    Raises:
        UsageFault: an object in `state` cannot be saved.
        LocalFault: the optimizers lack an averaged parameter, or (on entering) no anchors arrived in time.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        link: TrainerLink,
        *,
        seed: int,
        peer_id: str,
        stop: Callable[[], bool] = lambda: False,
        ready_timeout_seconds: float | None = None,
        checkpoints: Path | None = None,
        state: Mapping[str, Stateful] | None = None,
    ) -> None:
        self._optimizers = Optimizers(optimizer, module)
        self._absolute = AbsoluteState(self._optimizers.layers, self._optimizers.all)
        self.module = module
        self.link = link
        self._stop = stop
        self._ready_timeout_seconds = ready_timeout_seconds
        self._shows_anchor = False
        self._new_since = link.inner_steps
        mailbox = link.mailbox
        self._order = BlockOrder(seed, peer_id, mailbox.others_reading.read, mailbox.own_reading.write)
        self._num_rereads = 0
        self._num_tokens = 0
        self._reported_tokens = 0
        self._losses: list[float | torch.Tensor] = []
        self._keeper: TrainerKeeper | None = None
        self._follows_run = False
        self.stepped_by: threading.Thread | None = None
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._missing = MissingSteps(trained, link.clock)
        self._last_measured: Callable[[], float] | None = None
        self._state = state or {}
        check_state(self._state)
        if checkpoints is not None:
            self._keeper = TrainerKeeper(
                checkpoints,
                link,
                module,
                self._optimizers.all,
                lambda: self.optimizer_age,
                self._order,
                state=state,
                absolute=self._absolute,
            )

    def __enter__(self) -> Self:
        self._optimizers.hook(self._before_step, self._after_step)
        self._absolute.look()
        self.link.portion.find_copies = self._absolute.look
        if self._ready_timeout_seconds is not None:
            try:
                self.link.post_initial(self._ready_timeout_seconds, self._stop)
                if self._keeper is not None:
                    number = self.link.wait_restored(self._ready_timeout_seconds, self._stop)
                    age = self._keeper.restore(number) if number > 0 else None
                    if age is not None:
                        self._new_since = self.link.inner_steps - age
                self.link.wait_ready(self._ready_timeout_seconds, self._stop)
            except BaseException:
                self._optimizers.unhook()
                raise
        self._missing.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_waiting()
        self._optimizers.unhook()
        try:
            if kind is None and self._last_measured is not None and self.link.is_unmeasured:
                # No other peer measures the last anchor: the run has ended, or this peer was the only member.
                self.evaluate(self._last_measured)
        finally:
            if kind is None:
                self.link.flush(FLUSH_SECONDS)
            self.link.finish()

    def let_go(self) -> None:
        """Unhook the optimizers, whose steps no longer reach the network process."""
        self._optimizers.unhook()

    def idle(self) -> None:
        """Take incoming values and write requested checkpoints while the network process leaves."""
        self.link.poll()
        if self._keeper is not None:
            self._keeper.after_step()
        self._take_waiting()

    def rest(self, is_resting: Callable[[], bool]) -> None:
        """Take incoming values and write requested checkpoints while the owner pauses training, until training resumes
        or stops.
        """
        self.link.rest(lambda: is_resting() and not self.should_stop, self.idle)
        self._missing.begin()

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers themselves, without their wrappers."""
        return self._optimizers.all

    def follow_run(self) -> None:
        """Follow the run's learning rate, and do not warn about a scheduler that is missing in `state`."""
        self._follows_run = True

    @property
    def optimizer_age(self) -> int:
        """Number of inner steps in the optimizers' moments, including earlier sessions whose state was restored."""
        return self.link.inner_steps - self._new_since

    @property
    def should_stop(self) -> bool:
        """Whether the owner or the network process requests the end of training."""
        return self._stop() or self.link.stop_asked

    def next_positions(self, num_blocks: int, context: int, num_tokens_available: int) -> NDArray[np.int64]:
        """Return positions of the next `num_blocks` blocks of `context` + 1 tokens: int64 [num_blocks], never repeated.

        `BlockOrder` chooses the blocks: see `peer.data_division.block_order`. With `context` 0 the blocks are single
        samples, each counted as one token.
        """
        return self.next_blocks(num_blocks, context, OneGroup(num_tokens_available))

    def next_blocks(self, num_blocks: int, context: int, groups: Groups) -> NDArray[np.int64]:
        """Return `next_positions` in data of several groups, which may arrive while other groups are read.

        Raises:
            StoppedWaiting: training ended before any group was present.
            UsageFault: the loop steps a different optimizer.
        """
        self._missing.called()
        self._take_waiting()
        positions = self._order.next(num_blocks, context, groups)
        if positions is None:
            positions = self._wait_for_data(num_blocks, context, groups)
        self._num_tokens += num_blocks * max(1, context)
        return positions

    def _wait_for_data(self, num_blocks: int, context: int, groups: Groups) -> NDArray[np.int64]:
        """Wait for new data up to `MAX_DATA_WAIT_SECONDS`, then read present data again."""
        waited = 0.0
        while not self.should_stop:
            if not self._num_rereads:
                waited += self.link.wait_for_data(is_first=waited == 0.0)
            positions = self._order.next(num_blocks, context, groups)
            if positions is not None:
                self._num_rereads = 0
                return positions
            if (waited >= MAX_DATA_WAIT_SECONDS or self._num_rereads) and (
                positions := self._order.again(num_blocks, context, groups)
            ) is not None:
                # The next steps do not wait again, because requested groups arrive in the background.
                self._num_rereads += 1
                self.link.note_reread()
                return positions
        raise StoppedWaiting("asked to stop before any data arrived; nothing was lost; start again to continue.")

    def positions(
        self, num_blocks: int, context: int, num_tokens_available: int, max_steps: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield `next_positions` once per inner step, until `stop` or the network process ends training, or after
        `max_steps` steps in total.
        """
        while not self.should_stop and (max_steps is None or self.link.inner_steps < max_steps):
            yield self.next_positions(num_blocks, context, num_tokens_available)

    def report(self, loss: float | None = None, tokens: int | None = None) -> None:
        """Record the loss and tokens of the coming inner step. Optional; may be called once per micro-batch.

        Args:
            loss: training loss (nats per token); several are averaged.
            tokens: number of tokens read; several are added. They replace the count of `positions`, and are the weight
                of this peer's work in the mean.

        Raises:
            UsageFault: `tokens` is not a whole number from 1 on or too large for a step, `loss` is not a number, or the
                loop steps a different optimizer.
        """
        self._missing.called()
        if tokens is not None:
            self._reported_tokens += _counted(tokens, self._reported_tokens)
        if loss is not None:
            self._losses.append(_noted(loss))

    def skip_step(self) -> None:
        """Discard the tokens and losses since the last step, which was skipped because its gradient was not finite."""
        self._num_tokens = self._reported_tokens = 0
        self._losses.clear()

    def evaluate(self, measure: Callable[[], float]) -> Evaluation | None:
        """Evaluate the anchor in evaluation mode; see `TrainerLink.evaluate_on_anchor`. `measure` returns the loss.

        An orderly exit evaluates once more if the anchor has moved since.
        """
        self._last_measured = measure
        with evaluating(self.module), self._showing():
            return self.link.evaluate_on_anchor(measure)

    @contextmanager
    def anchor(self) -> Iterator[int]:
        """Set the live parameters to the swarm's anchor inside the block; afterwards restore the same bits, including
        buffers.

        Yields:
            sum of the anchor's versions.

        Raises:
            LocalFault: an anchor stayed torn for `ANCHOR_TRIES` seconds.
            UsageFault: the block is inside another anchor block, or an optimizer steps inside the block.
        """
        with self._showing():
            for _ in range(ANCHOR_TRIES):
                with self.link.on_anchor() as version:
                    if version is not None:
                        yield version
                        return
        raise LocalFault(
            f"no complete anchor of the swarm could be read for {ANCHOR_TRIES} s, perhaps because the network process "
            "restarts; expected a stable anchor; nothing was changed; try again later"
        )

    @contextmanager
    def _showing(self) -> Iterator[None]:
        """Prevent steps while the anchor is in the live parameters; restore buffers that change inside."""
        if self._shows_anchor:
            raise UsageFault("anchor() is called inside anchor(); expected one block at a time; use the outer block.")
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        self._shows_anchor = True
        try:
            yield
        finally:
            self._shows_anchor = False
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    def _take_waiting(self) -> None:
        """Write the waiting checkpoint, now that schedulers have stepped after the optimizers and the next step has not
        begun.
        """
        if self._keeper is not None:
            self._keeper.take_waiting()

    def _before_step(self) -> None:
        self._missing.begin()
        self._take_waiting()

    def _after_step(self) -> None:
        if self._shows_anchor:
            raise UsageFault(
                "an optimizer stepped inside anchor(), where the parameters are the swarm's; expected only reads; the "
                "end of the block undoes the step; step after the block."
            )
        if self.stepped_by is None and not self._follows_run:
            warn_of_schedule(self._state, self._optimizers.all)
        self.stepped_by = threading.current_thread()
        loss = float(sum(self._losses) / len(self._losses)) if self._losses else None
        # Work of no tokens has no weight in the mean, so a loop with its own order of data counts one token per step.
        num_tokens = self._reported_tokens or max(1, self._num_tokens)
        self.skip_step()
        self._absolute.look()
        self.link.after_inner_step(num_tokens, loss, self._optimizers.learning_rate, lambda: self.should_stop)
        if self._keeper is not None:
            self._keeper.after_step()


def _counted(tokens: Any, earlier: int) -> int:
    """Convert the reported tokens to an int, because libraries use their own number types, such as numpy's."""
    try:
        number = 0 if isinstance(tokens, bool) else operator.index(tokens)
    except (TypeError, ValueError, RuntimeError):
        number = 0
    if number < 1:
        raise UsageFault(f"tokens is {tokens!r:.80}; expected a whole number from 1; give the number of tokens read.")
    if earlier + number > MAX_STEP_TOKENS:
        raise UsageFault(
            f"{earlier + number} tokens are reported for one step; expected at most {MAX_STEP_TOKENS}, because others "
            "refuse larger work; give the number of tokens that this step read."
        )
    return number


def _noted(loss: Any) -> float | torch.Tensor:
    """Return the loss without its graph. A tensor stays a tensor, because reading it would wait for its device."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not (loss.is_complex() or loss.is_meta):
        return loss.detach()
    try:
        if hasattr(loss, "__float__"):
            return float(loss)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise UsageFault(f"loss is {loss!r:.80}; expected one number; give loss.item().")
