"""Train any `nn.Module` with a swarm, from your own loop in a script or notebook, with any torch optimizer.

    with murmuration.join(run_id, module=model, optimizer=optimizer, peers=[address]) as swarm:
        for indices in swarm.samples(batch_size, len(dataset)):
            loss = loss_of(model, dataset[indices])
            optimizer.zero_grad()
            loss.backward()
            swarm.report(loss.item())
            optimizer.step()

Entering the block copies the swarm's parameters into the module. All other work happens in a hook after
`optimizer.step()`, which never waits for the network (except in mode "sync"). Rounds run in a separate process. Leaving
the block, also by an exception, leaves the run and ends that process. SIGTERM and a closed terminal raise `SystemExit`
in the block, as Ctrl+C raises `KeyboardInterrupt`, unless the script has its own handler.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn
from torch.optim import Optimizer

from averaging.rounds.round_facts import WorkLost
from dht.admission.tickets import Invite
from dht.ground.errors import LocalFault, UsageFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity
from dht.records.evaluation import Evaluation
from peer.config.learning_rate_schedule import progress_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import averaged_parts
from peer.config.peer_config import ChoiceMark, PeerConfig, choices_with
from peer.config.validation_sentences import explain
from peer.data_folder.data_folder_choice import HeldFolder, hold_folder
from peer.events.event_log import to_json
from peer.events.peer_events import CheckpointFailed, Event, PartRestarted, SwarmContact
from peer.events.rotating_log import LineLog
from peer.files.checked_folder import checked_folder
from peer.join.checkpoint_disk_space import warn_of_room
from peer.join.own_loop_scheduler import RunScheduler, RunSchedulers, warm_up_share
from peer.join.python_error_words import faults_in_python, in_python
from peer.join.run_connection import READY_SECONDS, RunConnection
from peer.join.running_loop import RunningLoop
from peer.network.membership.invitation import PASS_NAME, accept_invite, read_invite, with_invite
from peer.observe.named_run import with_named_run
from peer.owner.custom_module import check_frozen_digest, check_has_values, check_trained
from peer.trainer.loop.checkpoint_portion import Stateful
from peer.trainer.loop.local_training import LocalTraining
from peer.trainer.loop.several_optimizers import Optimizers

NOT_OF_AN_OWN_LOOP = (*choices_with(ChoiceMark.TRAINING), *choices_with(ChoiceMark.OWN_TERMINAL))
"""Fields of `PeerConfig` that have no effect here, because the user's loop trains and there is no panel."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_WORTH_A_WARNING = (CheckpointFailed, PartRestarted)

log = logging.getLogger(__name__)
_Part = TypeVar("_Part")
_CLAIMED: set[int] = set()
"""Ids of the parameters that open sessions of this process train."""
_HERE: weakref.WeakSet[Swarm] = weakref.WeakSet()
"""Sessions that were created in this process, or in a process that was forked into this one."""
_OPEN: list[Swarm] = []
"""Sessions that were entered in this process and not left. They stay open even without another reference."""


def join(
    run_id: str | None = None,
    *,
    module: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    peers: list[str] | tuple[str, ...] = (),
    invite: str | Path | None = None,
    data_dir: str | Path | None = None,
    state: Mapping[str, Stateful] | None = None,
    on_event: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    **choices: Any,
) -> Swarm:
    """Join a run with your own training loop, in a `with` statement.

    Args:
        run_id: the run's id, the address of its page, its `murmuration://` link, or the name of a run that this machine
            joined before, as for `peer join`. `join` opens a page at once. Not needed with an invite.
        module: the module to train, already on its device. The run averages its parameters with `requires_grad`, and
            its saved floating-point buffers if the manifest contains them; their names, shapes and order must match the
            run's. In addition to the memory for training, float32 takes 4 bytes per value, and bfloat16, float16 and
            float64 take 8; other types are refused. Frozen parameters must equal the run's.
        optimizer: the optimizer of all these parameters; call `step` once per inner step. If a wrapper keeps the
            optimizer as ``optimizer``, as accelerate's does, only the steps that the wrapper passes on count. Several
            optimizers together must hold all parameters; an inner step ends when each of them has stepped. A later
            session restores state and options, as `load_state_dict` does; to change an option, set it in
            `param_groups` after `join`.
        peers: addresses of members; not needed where the run was created, or where this peer was a member before.
        invite: file with an invite to a private run, for the key of this peer. A listed key needs no invite.
        data_dir: folder for key, checkpoints and event log, one for each peer; default: as for `peer join`.
        state: additional objects, by name, that checkpoints keep and a later session restores: any objects with
            ``state_dict()`` and ``load_state_dict()``, such as a scheduler, a stateful data loader or a gradient
            scaler. A state consists of tensors, arrays, numbers, text, bytes, and lists and mappings of these.
        on_event: called with each event, from another thread; default: log events under ``peer.join.session``.
        stop: called before each step; True ends `Swarm.positions` and `Swarm.samples`.
        choices: other fields of `PeerConfig`, such as ``name`` or ``listen``, except `NOT_OF_AN_OWN_LOOP`.

    Raises:
        UsageFault: an argument is wrong, or has no effect with your own loop.
        NobodyReachable: the page does not answer.
        Incompatible: according to the page, the run has ended.
    """
    defaults = {name: PeerConfig.model_fields[name].default for name in NOT_OF_AN_OWN_LOOP}
    if unused := [name for name, usual in defaults.items() if choices.get(name, usual) != usual]:
        where = " (max_steps is an argument of Swarm.positions and Swarm.samples)" if "max_steps" in unused else ""
        raise UsageFault(
            f"join() got {', '.join(unused)}, which has no effect on your own training loop; expected only network "
            f"options; leave {'it' if len(unused) == 1 else 'them'} out, and do this in your loop{where}."
        )
    _check_arguments(module, optimizer, state, on_event, stop)
    with faults_in_python():
        named, held_invite = _named(run_id, peers, invite)
    fields = {**choices, **named}
    if data_dir is not None:
        fields["data_dir"] = Path(data_dir) if isinstance(data_dir, str) else data_dir
    try:
        with faults_in_python():
            config = PeerConfig.model_validate(fields)
    except ValidationError as error:
        raise UsageFault(explain(error, PeerConfig)) from error
    return Swarm(config, module, optimizer, on_event, stop, state, held_invite)


def _named(
    run_id: str | None, peers: list[str] | tuple[str, ...], invite: str | Path | None
) -> tuple[dict[str, Any], Invite | None]:
    """Return the fields for run id and addresses, as `peer join` derives them from the same words, and the invite."""
    if not isinstance(run_id, str | None):
        raise UsageFault(f"run_id is {run_id!r:.80}; expected the run's id, page, link or name as text.")
    if not isinstance(peers, list | tuple):
        return {"run_id": run_id, "peers": peers}, None  # PeerConfig refuses the value
    fields = with_named_run({"peers": [*peers] or None}, run_id, log.info)
    read = None if invite is None else read_invite(str(invite))
    if read is not None:
        fields = with_invite(fields, read)
    if fields["run_id"] is None:
        raise UsageFault(
            "no run is given; expected its id, page, link or name, or an invite; pass one of them to join()."
        )
    known = fields["peers"]
    return {"run_id": fields["run_id"], "peers": tuple(known) if isinstance(known, list | tuple) else ()}, read


class Swarm:
    """This peer's session in a run, inside the `with` block of `join`."""

    def __init__(
        self,
        config: PeerConfig,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        on_event: Callable[[Event], None] | None,
        stop: Callable[[], bool],
        state: Mapping[str, Stateful] | None = None,
        invite: Invite | None = None,
    ) -> None:
        self._config = config
        self._asked = config
        self._invite = invite
        self._loop: RunningLoop | None = None
        self._module = module
        self._optimizer = optimizer
        self._state = dict(state or {})
        self._on_event = on_event or _log_event
        self._is_told_of_on_event = False
        self._stop = stop
        self._lock = threading.Lock()
        self._log: LineLog | None = None
        self._held: HeldFolder | None = None
        self._restore_signal: Callable[[], object] = lambda: None
        self._connection: RunConnection | None = None
        self._manifest: RunManifest | None = None
        self._training: LocalTraining | None = None
        self._has_left = False
        self._is_copy = False
        self._claimed: set[int] = set()
        self._schedulers: RunSchedulers | None = None
        _HERE.add(self)
        _watch_forks()

    @faults_in_python()
    def __enter__(self) -> Self:
        """Find the run, check the module, and copy the swarm's parameters into it.

        A session of this process that an earlier loop left open, such as an interrupted notebook cell, is closed first,
        so that this session can use its data folder.

        Raises:
            LocalFault: the run could not be found or joined, `stop` returned True meanwhile, or another process uses
                the data folder.
            Incompatible: the module does not match the run.
        """
        if self._connection is not None:
            raise UsageFault("this Swarm was already entered; call join() again for another session")
        self._loop = RunningLoop()
        for session in [*_OPEN]:
            if session.is_abandoned(self):
                session.abandon()
        files = () if self._invite is None else (PASS_NAME,)
        self._config, self._held = hold_folder(self._config, "a training loop", files)
        if self._held.sentence is not None:
            log.info("%s", in_python(self._held.sentence))
        try:
            if self._invite is not None:
                accept_invite(self._invite, Identity.load_or_create(self._config.identity), self._config.data_dir)
            self._connection = RunConnection(self._config, self._show, log.info)
        except BaseException:
            self._held.give_up()
            raise
        _OPEN.append(self)
        self._restore_signal = ending_on_signals()
        try:
            self._log = LineLog(self._config.event_log_path, log.warning)
            self._enter(self._connection)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def is_abandoned(self, successor: Swarm) -> bool:
        """Return whether the loop of this session is over and `successor` replaces the session.

        A session that was entered by hand is only replaced by a session with the same data folder, because a script
        with two folders may want two peers.
        """
        loop, asked = self._loop, successor._asked
        stepped_by = None if self._training is None else self._training.stepped_by
        if self._is_copy or loop is None or not loop.is_over(stepped_by):
            return False
        is_same_run = asked.run_id == self._asked.run_id and (loop.is_library or asked.data_dir == self._asked.data_dir)
        return is_same_run or any(id(parameter) in self._claimed for parameter in successor._module.parameters())

    def abandon(self) -> None:
        """Leave the run as after an exception if the loop has ended without leaving."""
        log.warning(
            "the session in %s was still open although its loop has ended; it is closed now, and a new session begins",
            self._config.data_dir,
        )
        self.__exit__(RuntimeError, RuntimeError("the loop is over"), None)

    def become_copy(self) -> None:
        """Detach this session in a forked process: only the original process trains in the run and can leave it."""
        self._is_copy = self._connection is not None or self._training is not None
        if self._training is not None:
            self._training.let_go()

    @property
    def files(self) -> Path:
        """Path of a folder with the run's files and nothing else, each checked against the manifest.

        Raises:
            LocalFault: a file was changed or removed meanwhile.
        """
        return checked_folder(self._config.data_dir, self.manifest)

    def _enter(self, connection: RunConnection) -> None:
        manifest = connection.open(self._stop)
        if manifest is None:
            raise LocalFault("this peer was asked to stop before the run was found; nothing was trained; join again")
        self._manifest = manifest
        parameters, buffers = averaged_parts(self._module, manifest)
        check_frozen_digest(manifest, self._module)
        self._claim([parameter for _, parameter in parameters])
        if warning := warn_of_room(manifest, self._config.data_dir, self._config.checkpoints_path):
            log.warning("%s", warning)
        link = connection.link(manifest, parameters, parameters[0][1].device, buffers=buffers)
        training = LocalTraining(
            self._module,
            self._optimizer,
            link,
            seed=manifest.seed,
            peer_id=connection.identity.peer_id,
            stop=self._stop_or_fault,
            ready_timeout_seconds=READY_SECONDS,
            checkpoints=self._config.checkpoints_path,
            state=self._state,
        )
        self._training = training
        self._schedulers = RunSchedulers(training.optimizers, lambda: self.learning_rate_factor)
        training.__enter__()

    @faults_in_python()
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_copy or self._has_left:
            return
        connection = self._entered(self._connection)
        try:
            reason = "its loop ended" if kind is None else f"its loop ended with {kind.__name__}"
            if self._training is not None:
                self._training.__exit__(kind, error, trace)
                connection.close(reason, self._training.idle)
            elif connection.has_mailbox:
                # The network process may be a member already; without a mailbox, it cannot have joined.
                connection.close(reason)
        except LocalFault as fault:
            if error is None:
                raise
            # The loop's own exception explains more than its consequence.
            log.debug("while leaving: %s", fault)
        finally:
            self._end()

    def _end(self) -> None:
        self._has_left = True
        self._loop = None
        if self in _OPEN:
            _OPEN.remove(self)
        _CLAIMED.difference_update(self._claimed)
        self._restore_signal()
        if self._schedulers is not None:
            self._schedulers.close()
        if self._connection is not None:
            self._connection.abort()
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None
        if self._held is not None:
            has_trained = self._training is not None or self._config.checkpoints_path.exists()
            self._held.let_go(has_trained=has_trained)

    @property
    def manifest(self) -> RunManifest:
        """The manifest on which all peers of the run agree."""
        return self._entered(self._manifest)

    @property
    def peer_id(self) -> PeerId:
        """This peer's id in the swarm."""
        return self._entered(self._connection).identity.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which other members can reach this peer; pass them as `peers` to their `join`."""
        return self._entered(self._connection).network.addresses

    @property
    def training(self) -> LocalTraining:
        """The hook on the optimizer, for functions that `Swarm` does not offer."""
        return self._entered(self._training)

    def _claim(self, parameters: Sequence[nn.Parameter]) -> None:
        found = {id(parameter) for parameter in parameters}
        if found & _CLAIMED:
            raise UsageFault(
                "another session of this process already trains this module; expected one session per module, "
                "because two would undo each other's work; leave that session first"
            )
        self._claimed = found
        _CLAIMED.update(found)

    @staticmethod
    def _entered(part: _Part | None) -> _Part:
        if part is None:
            raise UsageFault(
                "this Swarm was not entered; expected `with murmuration.join(...) as swarm:` around its use"
            )
        return part

    @property
    def _open_training(self) -> LocalTraining:
        if self._is_copy:
            raise UsageFault(
                "this Swarm was entered before this process was forked, and belongs to the parent process; expected "
                "its use only there; for another peer, call join() here with a different data_dir"
            )
        if self._has_left:
            raise UsageFault(
                "this Swarm's with block has ended, and the swarm follows no loop outside it; call join() again for "
                "another session"
            )
        return self.training

    @property
    def inner_steps(self) -> int:
        """Number of finished inner steps, including earlier sessions of this peer."""
        return self.training.link.inner_steps

    @property
    def versions(self) -> tuple[int, ...]:
        """For each fragment, the version of the anchor that the live parameters include."""
        return tuple(state.applied_version for state in self.training.link.mailbox.states)

    @property
    def tokens(self) -> int:
        """The run's clock: number of tokens that the whole swarm has committed, as seen by this peer. Never falls."""
        return self.training.link.run_tokens

    @property
    def progress(self) -> float | None:
        """Completed share of the run's budget ``training.schedule.tokens``, 0 to 1, or None without a budget."""
        return progress_of(self.manifest.training.schedule, self.tokens)

    @property
    def learning_rate_factor(self) -> float:
        """Factor, 0 to 1, by which to multiply a learning rate for the next step.

        The factor is the run's schedule at `tokens`, which is the same on every peer, times a short warm-up of this
        peer's own moments.
        """
        own = warm_up_share(self.training.optimizer_age, self.manifest.training.warmup_steps)
        return own * self.training.link.learning_rate_factor

    @property
    def accumulation_steps(self) -> int:
        """Number of backward passes per inner step."""
        return self.manifest.training.accumulation_steps

    def scheduler(self, optimizer: Optimizer) -> RunScheduler:
        """Return a scheduler that multiplies the optimizer's rates by `learning_rate_factor` after each step.

        The scheduler replaces your own scheduler, which would count only this peer's steps. Do not add it to `state`.

        Raises:
            UsageFault: the optimizer was not passed to `join`.
        """
        training = self._open_training
        scheduler = self._entered(self._schedulers).of(optimizer)
        training.follow_run()
        return scheduler

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end; `positions` and `samples` check this before each step.

        Raises:
            LocalFault: the network process has ended for good.
        """
        return self._open_training.should_stop

    def positions(
        self, num_blocks: int, context: int, num_tokens: int, max_steps: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield, once per inner step, the start positions of the blocks of text that this peer reads.

        A block has `context` + 1 tokens. Each array is int64 [num_blocks], with values in 0..`num_tokens` - `context` -
        1. The values are a pure function of the manifest's seed, PeerId and inner step, so peers read different data.
        The iterator ends when this peer is asked to stop, or after `max_steps` inner steps.
        """
        _check_counts(num_blocks=num_blocks, context=context)
        if not num_tokens > context:
            raise UsageFault(
                f"num_tokens is {num_tokens} and context is {context}; expected more tokens, because a block has "
                "context + 1 tokens; use a longer text or a shorter context."
            )
        return self._open_training.positions(num_blocks, context, num_tokens, max_steps)

    def samples(self, batch_size: int, num_samples: int, max_steps: int | None = None) -> Iterator[NDArray[np.int64]]:
        """Yield, once per inner step, the indices of the samples that this peer reads, for data other than text.

        Each array is int64 [batch_size], with values in 0..`num_samples` - 1 that may repeat. Like `positions`, but
        a sample counts as one token in the weights of averaging.
        """
        _check_counts(batch_size=batch_size, num_samples=num_samples)
        return self._open_training.positions(batch_size, 0, num_samples, max_steps)

    def report(self, loss: float | None = None, tokens: int | None = None) -> None:
        """Report the training loss of the next inner step, and the number of tokens that it used. Optional.

        The number of tokens is the weight of this peer's work, and its credit. Without this number, each step counts
        the tokens of `positions` or `samples`; a step on data in your own order counts as one token. If there are
        several calls for the same step, tokens are added and losses are averaged.
        """
        self._open_training.report(loss, tokens)

    def skip_step(self) -> None:
        """Discard the data read since the last step, because the gradient is not finite and no step follows."""
        self._open_training.skip_step()

    def evaluate(self, measure: Callable[[], float]) -> Evaluation | None:
        """Measure a loss on the swarm's anchor instead of this peer's live parameters; see `LocalTraining.evaluate`."""
        return self._open_training.evaluate(measure)

    def anchor(self) -> AbstractContextManager[int]:
        """Return a context manager; inside its block the module holds the swarm's anchor, to save or test it.

            with swarm.anchor():
                model.save_pretrained(folder)

        After the block, also after an exception, parameters and buffers have the same bits as before. Inside the block
        this peer sends and merges no work, and no optimizer may step. The value of the block (`as`) is the sum of the
        anchor's versions.

        Raises:
            LocalFault: on entering, the anchor could not be read completely for half a minute.
            UsageFault: the block is nested in another one, or an optimizer steps inside.
        """
        return self._open_training.anchor()

    @faults_in_python()
    def _stop_or_fault(self) -> bool:
        assert self._connection is not None
        self._connection.network.check()
        return self._stop() or self._connection.network.run_has_ended

    def _show(self, event: Event) -> None:
        with self._lock:
            if self._log is not None:
                self._log.append(to_json(event))
            problem = None if self._held is None else self._held.lock.what_happened()
        if problem is not None:
            log.warning("%s", problem)
        try:
            self._on_event(event)
        except Exception:  # the user's code, in the thread that watches the network process
            if not self._is_told_of_on_event:
                log.warning("on_event failed; training continues, and further failures are not logged", exc_info=True)
            self._is_told_of_on_event = True


@functools.cache
def _watch_forks() -> None:
    """Register `_after_fork`, once, from the first session on."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """Detach all sessions in the new process."""
    for swarm in [*_HERE]:
        swarm.become_copy()
    _CLAIMED.clear()
    _OPEN.clear()


def _check_arguments(module: Any, optimizer: Any, state: Any, on_event: Any, stop: Any) -> None:
    """Check the arguments without the network, including types, because many loops run without a type checker."""
    if not isinstance(module, nn.Module):
        raise UsageFault(f"module is a {type(module).__name__}; expected the torch.nn.Module to train.")
    check_trained(module)
    for name, parameter in module.named_parameters():
        check_has_values(name, parameter)
    Optimizers(optimizer, module)
    if not isinstance(state, Mapping | None):
        raise UsageFault(
            f"state is a {type(state).__name__}; expected a mapping of names to objects, such as "
            '{"scheduler": scheduler}.'
        )
    for name, callback in {"on_event": on_event or _log_event, "stop": stop}.items():
        if not callable(callback):
            raise UsageFault(f"{name} is {callback!r}; expected a function; or leave the argument out.")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not count > 0:
            raise UsageFault(f"{name} is {count}; expected a whole number of at least 1.")


def ending_on_signals() -> Callable[[], object]:
    """Let SIGTERM and SIGHUP raise `SystemExit`, so that a session leaves when its service or terminal is closed.

    Returns:
        a function that restores the handlers. Outside the main thread, or for a signal with a handler, nothing changes.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    taken: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)

    def restore() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    return restore


def _log_event(event: Event) -> None:
    is_withheld = isinstance(event.fact, WorkLost) and event.fact.cause == "withheld"
    is_alone = isinstance(event.fact, SwarmContact) and event.fact.state != "found"
    is_warning = is_withheld or is_alone or isinstance(event.fact, _WORTH_A_WARNING)
    log.log(logging.WARNING if is_warning else logging.INFO, "%s", event.sentence())
