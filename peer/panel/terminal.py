"""The person at the terminal: the view, the event log, and the keys."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from dht.ground.errors import DeviceFault, Incompatible, InterruptionTold, UsageFault
from dht.identity.keys import Identity
from dht.identity.speakable import speakable_name
from peer.config.peer_config import PeerConfig, make_data_dir
from peer.data_folder.data_folder_choice import HeldFolder
from peer.data_folder.folder_lock import FolderLock
from peer.data_folder.run_folders import keep_name
from peer.events.event_log import to_json
from peer.events.peer_events import Event, JoinedRun
from peer.events.rotating_log import LineLog
from peer.panel import updates
from peer.panel.ctrl_c import LeaveRequest
from peer.panel.event_view import EventView
from peer.panel.key_bindings import Controls
from peer.panel.plain_and_json_views import make_view
from peer.panel.return_command import same_with
from peer.panel.scene import scene_of
from peer.panel.stderr_capture import KeptErrors
from peer.user_folders import PASS_NAME

LOOK_SECONDS = 0.1
"""Pause between two updates of the view, below what people notice."""
FOLDER_LOOKS = 50
"""Number of updates between two checks that the data folder still exists: 5 s."""
MAX_WAITING = 10_000
"""Events kept for a blocked output (a paused terminal); the log contains all."""
FAREWELL_SECONDS = 2.0
"""Time for the last lines; an output that is still blocked then is abandoned."""

_LEFT_AT_ONCE = "left at once, without telling the others; work after the last checkpoint is not saved"


class Terminal:
    """Shows events and notes, maintains the log and the data folder, and turns signals into a polite end.

    Args:
        view: the view to use; None: the one in `config`.
        what: the running command, reported to another process that wants the folder.
        held: the data folder, if it is already locked; it is released with this terminal.

    Raises:
        LocalFault: the data folder is unusable, or another process uses it.

    The view has its own thread and is never waited for, because a terminal paused with Ctrl+S must not stop the network
    process. No method called by a signal handler takes a lock.
    """

    def __init__(
        self,
        config: PeerConfig,
        view: EventView | None = None,
        what: str = "peer join",
        held: HeldFolder | None = None,
    ) -> None:
        make_data_dir(config)
        self._folder = FolderLock(config.data_dir, what) if held is None else held.lock
        self._give_up = self._folder.close if held is None else held.give_up
        self._is_spare = held is not None and held.is_spare
        is_seed = what == "peer seed"
        limits = updates.LineLimits(config.upload_limit_mbit, config.download_limit_mbit)
        self._view = view or make_view(
            config.output,
            sys.stdout,
            sys.stderr,
            os.environ,
            scene=replace(
                scene_of(config.run_id, limits, is_seed=is_seed),
                same_again=partial(same_with, config, what),
                began_at=time.time(),
            ),
            act=self._act,
            keyboard=sys.stdin,
            # With several processes, a pause would exceed the time that they wait for each other.
            controls=Controls(can_rest=not is_seed and not _trains_in_several_processes(config, os.environ)),
        )
        self._errors = KeptErrors()
        self._is_resting = False
        self._leaving = LeaveRequest(
            lambda said: self.tell(updates.Doing("leaving", said)), has_panel=self._view.is_full_screen
        )
        self._limit: Callable[[updates.LineLimits], object] = lambda limits: None
        self._new_limits: updates.LineLimits | None = None
        self._waiting: deque[Event | updates.ViewUpdate | str] = deque(maxlen=MAX_WAITING)
        self._log = LineLog(config.event_log_path, self.note)
        self._log_lock = threading.Lock()
        self._closed = threading.Event()
        self._is_member = self._may_stay = False
        self._first_deed = "any member was served" if is_seed else "training began"
        self._config = config
        self._listeners: list[Callable[[Event], object]] = []
        if held is not None and held.sentence is not None:
            self.mention(held.sentence)

    def show(self, event: Event) -> None:
        """Show an event and write it to the log; may be called from any thread."""
        with self._log_lock:
            self._log.append(to_json(event))
        if isinstance(event.fact, JoinedRun) and not self._is_member:
            self._is_member = True
            keep_name(self._config.data_dir, self._config.name)
        for listener in self._listeners:
            listener(event)
        self._waiting.append(event)

    def tell_also(self, listener: Callable[[Event], object]) -> None:
        """Pass every later event to `listener`, from any thread; the listener must not block."""
        self._listeners.append(listener)

    def note(self, sentence: str) -> None:
        """Show the owner a sentence that is not an event."""
        self._waiting.append(sentence)

    def tell(self, update: updates.ViewUpdate) -> None:
        """Pass an update that is neither event nor note to the view; may be called from any thread."""
        self._waiting.append(update)

    def mention(self, sentence: str) -> None:
        """Show the owner a sentence of short-lived interest; `note` is for warnings."""
        self.tell(updates.Remark(sentence))

    def step(self, name: updates.StepName, detail: str = "", *, is_done: bool = False) -> None:
        """Show that a step of loading began or is done."""
        self.tell(updates.LoadingStep(name, detail, is_done))

    def is_resting(self) -> bool:
        """Return whether the owner has paused training."""
        return self._is_resting

    def limit_by(self, action: Callable[[updates.LineLimits], object]) -> None:
        """Call `action` with the new bandwidth limits whenever the owner changes them, from the view's thread.

        If the owner has changed them already, call it now.
        """
        self._limit = action
        if self._new_limits is not None:
            action(self._new_limits)

    def leave_by(self, action: Callable[[], object]) -> None:
        """Call `action` once the owner wants to leave: from a signal handler, or now if the owner already does."""
        self._leaving.leave_by(action)

    def stop_asked(self) -> bool:
        """Return whether the owner wants to leave."""
        return self._leaving.is_asked

    def keep_folder(self) -> None:
        """Keep the data folder once the run was found, because others may see this peer's key from now on.

        A spare folder is still deleted, unless this peer becomes a member or has begun to fetch the state.
        """
        self._may_stay = True

    @property
    def left_early(self) -> bool:
        """Whether the owner wants to leave and this peer is not a member yet."""
        return self._leaving.is_asked and not self._is_member

    def leaving_at_once(self) -> AbstractContextManager[None]:
        """Make the first Ctrl+C end the work in the block; for the main thread, before any member waits for this peer.

        Raises:
            KeyboardInterrupt: in the block, once the owner wants to leave, or already does.
        """
        return self._leaving.at_once()

    def loaded(self) -> None:
        """From now on, treat the first Ctrl+C as a polite request."""
        self._leaving.loaded()

    def _act(self, action: updates.Action) -> None:
        """Execute the request of a key."""
        if isinstance(action, updates.LineLimits):
            self._new_limits = action
            self._limit(action)
            self.tell(action)
        elif action == "rest":
            self._is_resting = not self._is_resting
            self.tell(updates.Doing("paused" if self._is_resting else "resumed"))
        else:
            self._leaving.ask()

    @contextmanager
    def interruptible(self, *, is_loading: bool = False) -> Iterator[None]:
        """Leave politely on the first Ctrl+C, SIGTERM or closed terminal, and at once on the second.

        With `is_loading` the first one leaves at once until `loaded` is called, because no goodbye is needed yet. The
        view runs in the block.

        A background job that ignores Ctrl+C or hang-ups continues to ignore them; SIGTERM ends it.
        """
        with self._leaving.by_signals(self._view.suspend_soon, is_loading=is_loading):
            if self._view.is_full_screen:
                self._errors.open()
            viewer = threading.Thread(target=self._show_all, name="view", daemon=True)
            viewer.start()
            try:
                yield
            except KeyboardInterrupt:
                self._leaving.interrupted()
                if self._is_member:
                    self.note(_LEFT_AT_ONCE)
                raise InterruptionTold from None
            except (UsageFault, Incompatible, DeviceFault):
                self.tell(updates.Doing("ended for good"))
                raise
            finally:
                self._leaving.loaded()
                self._end(viewer)

    def _end(self, viewer: threading.Thread) -> None:
        if self.left_early:
            self.note(f"left before {self._first_deed}: nothing is lost")
        self._closed.set()
        viewer.join(FAREWELL_SECONDS)
        self._view.restore()
        self._errors.close()
        with self._log_lock:
            self._log.close()
        if self._is_spare:
            stays = self._is_member or self._config.checkpoints_path.exists()
        else:
            # A run without a manifest here may be a mistyped one. An invite is for this key, so its folder stays.
            is_known = self._config.run_record_path.exists() or (self._config.data_dir / PASS_NAME).exists()
            stays = self._may_stay and is_known
        if stays:
            self._folder.close()
        else:
            self._give_up()

    def _show_all(self) -> None:
        for num_looks in itertools.count(1):
            is_last = self._closed.wait(LOOK_SECONDS if num_looks > 1 else 0)
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, str):
                    self._view.note(item)
                elif isinstance(item, Event):
                    self._view.show(item)
                else:
                    self._view.tell(item)
            for line in self._errors.lines():
                self._view.note(line)
            if is_last:
                self._view.close()
                return
            self._view.tick(time.time())
            if num_looks % FOLDER_LOOKS == 0 and (problem := self._folder.what_happened()) is not None:
                self.note(problem)


@contextmanager
def opened_terminal(config: PeerConfig, what: str, held: HeldFolder | None = None) -> Iterator[Terminal]:
    """Open a terminal with the checklist before any slow import; see `Terminal`.

    Raises:
        LocalFault: the data folder or the key in it is unusable.
    """
    terminal = Terminal(config, what=what, held=held)
    with terminal.interruptible(is_loading=True):
        own = Identity.load_or_create(config.identity).peer_id
        terminal.step("key", config.name or speakable_name(own), is_done=True)
        yield terminal


def _trains_in_several_processes(config: PeerConfig, environ: Mapping[str, str]) -> bool:
    """Return whether other processes of this peer, local or started by torchrun, would wait for one that pauses."""
    return config.shard or (config.devices or 1) > 1 or environ.get("WORLD_SIZE", "1") != "1"
