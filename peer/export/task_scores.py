"""Scores of a model in tasks of lm-eval, the harness by which published models are compared.

A task is one of the harness's own names, a YAML file of its form, or a folder of such files. A task that was given as a
file may bring Python code of its own (`!function`), as it may anywhere else in the harness. The person that gives it
runs it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault, UsageFault
from peer.optional_libraries import needing

_SEPARATOR = ","


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one task. `error`: its standard error; None: not known."""

    task: str
    metric: str
    value: float
    error: float | None
    num_samples: int


def score_tasks(folder: Path, tasks: str, limit: int | None, device: str) -> list[Score]:
    """Scores of the model in `folder`, which transformers loads, in the order of the tasks.

    Args:
        tasks: names, files and folders, separated by commas.
        limit: samples of each task; None: all.
        device: as torch names it.

    Raises:
        UsageFault: a task is not known, or cannot be loaded.
        LocalFault: the harness failed with this model.
    """
    harness, manager_class = load_harness()
    with _quiet():
        specs, manager = _specs_of(tasks, manager_class)
        try:
            loaded = manager.load(specs)["tasks"]
        except Exception as error:  # whatever reading a task and its data ran into
            raise UsageFault(
                f"--tasks {tasks}: {_reason(error)}; expected tasks of lm-eval whose data is here or can be fetched; "
                "without a network, give files whose dataset_path and data_files are local"
            ) from error
        # It asks git for the working folder's commit, which nobody reads; outside a clone git complains.
        evaluator = vars(importlib.import_module("lm_eval.evaluator"))
        evaluator["get_git_commit_hash"] = lambda: None
        try:
            found = harness.simple_evaluate(
                model="hf",
                model_args={"pretrained": str(folder), "trust_remote_code": False},
                tasks=list(loaded.values()),
                task_manager=manager,
                limit=limit,
                device=device,
                log_samples=False,
            )
        except Exception as error:  # whatever the code of a task ran into
            raise LocalFault(
                f"lm-eval could not measure {tasks}: {_reason(error)}; expected tasks that fit a model which writes "
                "on from a text; try one task with --limit 1"
            ) from error
    return list(_scores(found))


def load_harness() -> tuple[Any, Any]:
    """lm-eval and what manages its tasks; called also before anything is downloaded.

    Raises:
        UsageFault: the harness, or a library that it needs, is not installed.
    """
    with needing("`peer evaluate --tasks`", "lm-eval", "eval"):
        import lm_eval
        import transformers  # noqa: F401  (the harness loads it late, and the model by it)
        from lm_eval.tasks import TaskManager
    return lm_eval, TaskManager


def _specs_of(tasks: str, manager_class: Any) -> tuple[list[str], Any]:
    """What the harness is asked for, and where it looks."""
    asked = [task.strip() for task in tasks.split(_SEPARATOR) if task.strip()]
    if not asked:
        raise UsageFault("--tasks names no task; expected names, YAML files or folders, separated by commas.")
    folders = [task for task in asked if Path(task).is_dir()]
    names = [task for task in asked if not Path(task).exists()]
    for name in names:
        if "/" in name or name.endswith((".yaml", ".yml")):
            raise UsageFault(f"--tasks {name} is no file; expected a task of lm-eval as a YAML file.")
    own = manager_class(include_path=folders, include_defaults=False)
    # Its thousands of own files are only read for a name of its own.
    manager = manager_class(include_path=folders) if set(names) - set(own.all_tasks) else own
    for name in names:
        if name not in manager.all_tasks:
            raise UsageFault(f"lm-eval knows no task {name!r}; expected one of `lm-eval ls tasks`, or a YAML file.")
    specs: list[str] = []
    for task in asked:
        found = [task] if task not in folders else _tasks_in(task, manager_class)
        specs += [spec for spec in found if spec not in specs]
    return specs, manager


def _tasks_in(folder: str, manager_class: Any) -> list[str]:
    names: list[str] = manager_class(include_path=[folder], include_defaults=False).all_subtasks
    if not names:
        raise UsageFault(f"--tasks {folder} has no task in it; expected YAML files of lm-eval.")
    return names


def _scores(found: Mapping[str, Any]) -> Iterator[Score]:
    for task, facts in found["results"].items():
        samples = found["n-samples"].get(task, {}).get("effective", 0)
        for key, value in facts.items():
            metric, _, chain = key.partition(",")
            # "acc,none": a metric and the filters before it; other entries are no scores.
            if not chain or metric.endswith("_stderr"):
                continue
            error = facts.get(f"{metric}_stderr,{chain}")
            known = isinstance(error, float | int) and math.isfinite(error)
            name = metric if chain == "none" else f"{metric} ({chain})"
            yield Score(str(task), name, float(value), float(error) if known else None, int(samples))


def _reason(error: Exception) -> str:
    """The first line of what a library says."""
    said: Sequence[str] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]:.300}" if said else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What libraries print goes to standard error, and only warnings of theirs, so that the output is ours.

    They draw bars there, some whatever the environment says. Those are for terminals; elsewhere all of it goes nowhere.
    """
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.ExitStack() as stack:
            if not sys.stderr.isatty():
                stack.enter_context(contextlib.redirect_stderr(stack.enter_context(open(os.devnull, "w"))))
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield
    finally:
        logger.setLevel(before)
