"""Local training as a peer: any module, any torch optimizer, any loop.

    with LocalTraining(module, optimizer, link, seed=seed, peer_id=peer_id) as training:
        for positions in training.positions(batch_size, context, num_tokens):
            inputs, targets = stream.batch(positions, context)
            optimizer.zero_grad()
            loss = module.loss(inputs, targets)
            loss.backward()
            training.report(loss.item())
            optimizer.step()

Everything else happens in a hook after the optimizers' steps: counting, sending what is due, merging what came.
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
"""For data that is not here yet; then data that is here is read again. Reading twice costs less than an idle device."""

ANCHOR_TRIES = 30
"""To read an anchor that is not torn, a second each: a network process that has died is back by then."""

FLUSH_SECONDS = 5.0
"""On leaving, for the network side to take the last work. It is many times what it needs for as many messages as there
are fragments, unless it is just being restarted.
"""


MAX_STEP_TOKENS = 2**30
"""That one step may count. A contribution has the tokens of many steps, and others refuse one of more than 2^40."""


MAX_CALLS = 1000
"""Of a loop that reads and reports, without a step: accumulation takes some hundreds."""
PATIENCE_SECONDS = 60.0
"""After which fewer will do: `FEW_CALLS` where parameters moved, `MANY_CALLS` where none has a gradient."""
FEW_CALLS, MANY_CALLS = 20, 100
_FIRST_CALLS = 10
"""No usual step takes as many; from then on it is looked at what happens."""
_NUM_SAMPLED = 64


class MissingSteps:
    """Finds loops that train beside their session: they step another optimizer than `join` was given.

    It counts the calls of a loop since the last step of its session.

    Args:
        parameters: what the session trains.
        clock: seconds.
    """

    def __init__(self, parameters: Sequence[Tensor], clock: Callable[[], float]) -> None:
        self._parameters = tuple(parameters)
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A step was taken, or the loop had nothing to do until now."""
        self._num_calls = 0
        self._since = self._clock()
        self._has_gradient = False
        self._before: list[Tensor] = []

    def called(self) -> None:
        """The loop has read data or reported.

        Raises:
            UsageFault: it must have taken steps meanwhile of which the session knows nothing.
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
                f"join() was given, {what}; expected steps of that one, and nothing was counted or sent meanwhile; "
                "give join() the module and the optimizer that the loop trains, and join again after making a new one"
            )
        if self._num_calls >= MAX_CALLS:
            self.begin()  # it accumulates

    def _sampled(self) -> list[Tensor]:
        """Some values of the first, the middle and the last parameter, where they are."""
        places = {0, len(self._parameters) // 2, len(self._parameters) - 1} if self._parameters else set()
        return [self._parameters[place].detach().reshape(-1)[:_NUM_SAMPLED].clone() for place in sorted(places)]


class StoppedWaiting(LocalFault):
    """Somebody wanted training to end while it waited for data."""


class LocalTraining:
    """Hooks an optimizer to a `TrainerLink` and says which blocks of the data this peer reads.

    Args:
        module: what is trained; the optimizer must hold all of its parameters that the run averages.
        optimizer: any, or a wrapper around one, or several of them; each must step once per inner step.
        link: made from the module's named parameters.
        seed: the manifest's; peer_id: this peer's; together they choose the data.
        stop: asked before every step; True ends `positions`.
        ready_timeout_seconds: on entering, post the initial parameters and wait this long for the anchors to start
            from. None when the caller does that itself (simulation).
        checkpoints: folder in which this side of checkpoints is kept; None keeps none.
        state: what else checkpoints keep, by name; see `peer.trainer.loop.checkpoint_portion.Stateful`.

    Attributes:
        stepped_by: the thread that took the last inner step; None before the first one.

    Raises:
        UsageFault: something in `state` cannot be kept.
        LocalFault: the optimizers lack an averaged parameter, or (on entering) no anchors came in time.
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
        self.link.portion.move_also(self._absolute.look)
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
                # Nobody else measures the last anchor: the run has ended, or this peer was the only one.
                self.evaluate(self._last_measured)
        finally:
            if kind is None:
                self.link.flush(FLUSH_SECONDS)
            self.link.finish()

    def let_go(self) -> None:
        """From now on the optimizers are stepped without a word to the network side."""
        self._optimizers.unhook()

    def idle(self) -> None:
        """While the network side leaves, after this block: take what still comes, keep what it asks to keep."""
        self.link.poll()
        if self._keeper is not None:
            self._keeper.after_step()
        self._take_waiting()

    def rest(self, is_resting: Callable[[], bool]) -> None:
        """The owner paused training: take what comes and keep what is asked for, until they go on or stop."""
        self.link.rest(lambda: is_resting() and not self.should_stop, self.idle)
        self._missing.begin()

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers themselves, out of their wrappers."""
        return self._optimizers.all

    def follow_run(self) -> None:
        """The run says the learning rate: no step warns of a scheduler that is not in `state`."""
        self._follows_run = True

    @property
    def optimizer_age(self) -> int:
        """Inner steps that the optimizers' moments have seen: those of earlier sessions as far as they came back."""
        return self.link.inner_steps - self._new_since

    @property
    def should_stop(self) -> bool:
        """The owner or the network side wants training to end."""
        return self._stop() or self.link.stop_asked

    def next_positions(self, num_blocks: int, context: int, num_tokens_available: int) -> NDArray[np.int64]:
        """Positions of the next `num_blocks` blocks of `context` + 1 tokens: int64 [num_blocks], never the same again.

        Which ones `BlockOrder` decides: see `peer.data_division.block_order`. With `context` 0 they are single
        samples, each counted as one token.
        """
        return self.next_blocks(num_blocks, context, OneGroup(num_tokens_available))

    def next_blocks(self, num_blocks: int, context: int, groups: Groups) -> NDArray[np.int64]:
        """`next_positions` in data of several groups, which may come while others of them are read.

        Raises:
            StoppedWaiting: before any of them was there.
            UsageFault: the loop steps another optimizer.
        """
        self._missing.called()
        self._take_waiting()
        positions = self._order.next(num_blocks, context, groups)
        if positions is None:
            positions = self._wait_for_data(num_blocks, context, groups)
        self._num_tokens += num_blocks * max(1, context)
        return positions

    def _wait_for_data(self, num_blocks: int, context: int, groups: Groups) -> NDArray[np.int64]:
        """Wait for new data, but not for long: then read again what is here."""
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
                # The next steps do not wait again: what is wanted comes in the background.
                self._num_rereads += 1
                self.link.note_reread()
                return positions
        raise StoppedWaiting("asked to stop before any data was here; nothing was lost; start again to go on.")

    def positions(
        self, num_blocks: int, context: int, num_tokens_available: int, max_steps: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """`next_positions` again and again, once per inner step, until asked to stop or `max_steps` steps in total."""
        while not self.should_stop and (max_steps is None or self.link.inner_steps < max_steps):
            yield self.next_positions(num_blocks, context, num_tokens_available)

    def report(self, loss: float | None = None, tokens: int | None = None) -> None:
        """Note what the coming inner step was made of. Optional; may be called once per micro-batch.

        Args:
            loss: training loss (nats per token); several are averaged.
            tokens: how many were read; several are added up. They count in place of those of `positions`, and weigh
                this peer's work in the mean.

        Raises:
            UsageFault: `tokens` is no whole number from 1 on, or of too many for a step, `loss` is no number, or the
                loop steps another optimizer.
        """
        self._missing.called()
        if tokens is not None:
            self._reported_tokens += _counted(tokens, self._reported_tokens)
        if loss is not None:
            self._losses.append(_noted(loss))

    def skip_step(self) -> None:
        """Forget the tokens and losses read since the last step: its gradient was not finite and is not taken."""
        self._num_tokens = self._reported_tokens = 0
        self._losses.clear()

    def evaluate(self, measure: Callable[[], float]) -> Evaluation | None:
        """Evaluate the anchor in evaluation mode; see `TrainerLink.evaluate_on_anchor`. `measure` returns the loss.

        Leaving in an orderly way does it once more if the anchor has moved since.
        """
        self._last_measured = measure
        with evaluating(self.module), self._showing():
            return self.link.evaluate_on_anchor(measure)

    @contextmanager
    def anchor(self) -> Iterator[int]:
        """Inside, the live parameters are the swarm's anchor; afterwards the same bits as before, buffers too.

        Yields:
            sum of the anchor's versions.

        Raises:
            LocalFault: an anchor stayed torn for `ANCHOR_TRIES` seconds.
            UsageFault: it is inside another one already, or an optimizer steps inside.
        """
        with self._showing():
            for _ in range(ANCHOR_TRIES):
                with self.link.on_anchor() as version:
                    if version is not None:
                        yield version
                        return
        raise LocalFault(
            f"the swarm's anchor could not be read whole for {ANCHOR_TRIES} s, as when the network process is being "
            "restarted; nothing was changed; expected one that stays; try again later"
        )

    @contextmanager
    def _showing(self) -> Iterator[None]:
        """While the anchor is shown nobody steps; buffers that change inside are put back."""
        if self._shows_anchor:
            raise UsageFault("the anchor is asked for inside itself; expected one at a time; it is there already.")
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
        """What steps after the optimizers has stepped, and nothing of the next step has."""
        if self._keeper is not None:
            self._keeper.take_waiting()

    def _before_step(self) -> None:
        self._missing.begin()
        self._take_waiting()

    def _after_step(self) -> None:
        if self._shows_anchor:
            raise UsageFault(
                "an optimizer stepped inside anchor(), where the parameters are the swarm's; what it did is undone "
                "with the block; expected only reading there; step after the block."
            )
        if self.stepped_by is None and not self._follows_run:
            warn_of_schedule(self._state, self._optimizers.all)
        self.stepped_by = threading.current_thread()
        loss = float(sum(self._losses) / len(self._losses)) if self._losses else None
        # Work of no tokens has no weight in the mean: a loop with its own order of data counts one per step.
        num_tokens = self._reported_tokens or max(1, self._num_tokens)
        self.skip_step()
        self._absolute.look()
        self.link.after_inner_step(num_tokens, loss, self._optimizers.learning_rate, lambda: self.should_stop)
        if self._keeper is not None:
            self._keeper.after_step()


def _counted(tokens: Any, earlier: int) -> int:
    """What was reported, as a number: libraries count in numbers of their own, such as numpy's."""
    try:
        number = 0 if isinstance(tokens, bool) else operator.index(tokens)
    except (TypeError, ValueError, RuntimeError):
        number = 0
    if number < 1:
        raise UsageFault(f"tokens is {tokens!r:.80}; expected a whole number from 1 on; give how many were read.")
    if earlier + number > MAX_STEP_TOKENS:
        raise UsageFault(
            f"{earlier + number} tokens are reported for one step; expected {MAX_STEP_TOKENS} at most, since others "
            "refuse work of more; give what this step read."
        )
    return number


def _noted(loss: Any) -> float | torch.Tensor:
    """A loss without what it was computed from. A tensor stays one: reading it would wait for its device."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not (loss.is_complex() or loss.is_meta):
        return loss.detach()
    try:
        if hasattr(loss, "__float__"):
            return float(loss)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise UsageFault(f"loss is {loss!r:.80}; expected one number; give loss.item().")
