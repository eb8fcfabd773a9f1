"""The person at the terminal: what they see, the event log they keep, and what their keys do."""

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
from peer.data_folder_choice import HeldFolder
from peer.events.event_log import to_json
from peer.events.peer_events import Event, JoinedRun
from peer.events.rotating_log import LineLog
from peer.folder_lock import FolderLock
from peer.panel import updates
from peer.panel.ctrl_c import LeaveRequest
from peer.panel.key_bindings import Controls
from peer.panel.plain_and_json_views import EventView, make_view
from peer.panel.return_command import same_with
from peer.panel.scene import scene_of
from peer.panel.stderr_capture import KeptErrors
from peer.run_folders import keep_name
from peer.user_folders import PASS_NAME

LOOK_SECONDS = 0.1
"""Between two looks of the view at what is new: below what people notice."""
FOLDER_LOOKS = 50
"""Between two looks whether the data folder is still there: 5 s."""
MAX_WAITING = 10_000
"""Events kept for an output that takes nothing at the moment (a paused terminal); the log has them all."""
FAREWELL_SECONDS = 2.0
"""For the last lines; an output that is still blocked then is left alone."""

_LEFT_AT_ONCE = "left at once, without a goodbye to the others; work after the last checkpoint is not saved"


class Terminal:
    """Shows events and notes, keeps the log and the data folder, and turns signals into a polite end.

    Args:
        view: what its person looks at; default: as `config` says.
        what: runs here; another process that wants the folder is told so.
        held: the data folder, when it has been taken before; it is let go with this terminal.

    Raises:
        LocalFault: the data folder cannot be used, or another process uses it.

    The view has a thread of its own and is never waited for. A terminal that was paused with Ctrl+S must not stop the
    network side. Nothing here that a signal handler calls takes a lock.
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
            # Several processes would wait for each other longer than they may.
            controls=Controls(can_rest=not is_seed and not _trains_in_several_processes(config, os.environ)),
        )
        self._errors = KeptErrors()
        self._is_resting = False
        self._leaving = LeaveRequest(lambda said: self.tell(updates.Leaving(said)), has_panel=_is_panel(self._view))
        self._limit: Callable[[updates.LineLimits], object] = lambda limits: None
        self._waiting: deque[Event | updates.ViewUpdate | str] = deque(maxlen=MAX_WAITING)
        self._log = LineLog(config.event_log_path, self.note)
        self._log_lock = threading.Lock()
        self._closed = threading.Event()
        self._is_member = self._may_stay = False
        self._first_deed = "anybody was served" if is_seed else "training began"
        self._config = config
        self._listeners: list[Callable[[Event], object]] = []
        if held is not None and held.sentence is not None:
            self.mention(held.sentence)

    def show(self, event: Event) -> None:
        """Show an event and keep it in the log; callable from any thread."""
        with self._log_lock:
            self._log.append(to_json(event))
        if isinstance(event.fact, JoinedRun) and not self._is_member:
            self._is_member = True
            keep_name(self._config.data_dir, self._config.name)
        for listener in self._listeners:
            listener(event)
        self._waiting.append(event)

    def tell_also(self, listener: Callable[[Event], object]) -> None:
        """Let `listener` have every event from now on, from any thread; it must not wait."""
        self._listeners.append(listener)

    def note(self, sentence: str) -> None:
        """Tell the owner something that is no event."""
        self._waiting.append(sentence)

    def tell(self, update: updates.ViewUpdate) -> None:
        """Tell the view something that is neither; callable from any thread."""
        self._waiting.append(update)

    def mention(self, sentence: str) -> None:
        """Tell the owner something that is soon of no use; `note` is for warnings."""
        self.tell(updates.Remark(sentence))

    def step(self, name: updates.StepName, detail: str = "", *, is_done: bool = False) -> None:
        """A step of loading began or is done."""
        self.tell(updates.LoadingStep(name, detail, is_done))

    def is_resting(self) -> bool:
        """Whether the owner has paused training."""
        return self._is_resting

    def limit_by(self, action: Callable[[updates.LineLimits], object]) -> None:
        """Call `action` with the limits of the line whenever the owner changes them, from the thread of the view."""
        self._limit = action

    def leave_by(self, action: Callable[[], object]) -> None:
        """Call `action` once the owner wants to leave: from a signal handler, or now if that was before."""
        self._leaving.leave_by(action)

    def stop_asked(self) -> bool:
        """Whether the owner wants to leave."""
        return self._leaving.is_asked

    def keep_folder(self) -> None:
        """From now on others may see this peer's key: the data folder stays once the run was found.

        A spare one still goes, unless this peer becomes a member or has begun to fetch the state.
        """
        self._may_stay = True

    @property
    def left_early(self) -> bool:
        """Whether the owner wants to leave and this peer is no member yet."""
        return self._leaving.is_asked and not self._is_member

    def leaving_at_once(self) -> AbstractContextManager[None]:
        """For the main thread, before anybody waits for this peer: inside, the first Ctrl+C ends what is done there.

        Raises:
            KeyboardInterrupt: inside, once the owner wants to leave, or did before.
        """
        return self._leaving.at_once()

    def loaded(self) -> None:
        """From now on the first Ctrl+C is a polite one."""
        self._leaving.loaded()

    def _act(self, action: updates.Action) -> None:
        """What somebody wants who pressed a key."""
        if isinstance(action, updates.LineLimits):
            self._limit(action)
            self.tell(action)
        elif action == "rest":
            self._is_resting = not self._is_resting
            self.tell(updates.Resting(self._is_resting))
        else:
            self._leaving.ask()

    @contextmanager
    def interruptible(self, *, is_loading: bool = False) -> Iterator[None]:
        """The first Ctrl+C, SIGTERM or closed terminal leaves politely, the second at once.

        With `is_loading` the first one leaves at once until `loaded` is called: there is nobody to say goodbye to.
        Meanwhile the view runs.
        A background job whose Ctrl+C or hang-up is ignored keeps it so; SIGTERM ends it.
        """
        with self._leaving.by_signals(self._view.suspend_soon, is_loading=is_loading):
            if _is_panel(self._view):
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
                self.tell(updates.EndedForGood())
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
            # A run of which nobody here has a manifest may be a mistyped one. An invite is for this key.
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
    """A terminal with the checklist on it, before anything that takes long to import; see `Terminal`.

    Raises:
        LocalFault: the data folder or the key in it cannot be used.
    """
    terminal = Terminal(config, what=what, held=held)
    with terminal.interruptible(is_loading=True):
        own = Identity.load_or_create(config.identity).peer_id
        terminal.step("key", config.name or speakable_name(own), is_done=True)
        yield terminal


def _is_panel(view: EventView) -> bool:
    """Whether it takes the whole screen. Its module is loaded only if it is there."""
    module = sys.modules.get("peer.panel.live_panel")
    return module is not None and isinstance(view, module.PanelView)


def _trains_in_several_processes(config: PeerConfig, environ: Mapping[str, str]) -> bool:
    """Whether others of this peer's processes would wait for one that pauses, here or started by torchrun."""
    return config.shard or (config.devices or 1) > 1 or environ.get("WORLD_SIZE", "1") != "1"
