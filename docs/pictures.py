"""Makes the pictures in docs/images from a real demo swarm on this machine, in about two minutes.

    python -m docs.pictures            trains for a minute, and takes screenshots of the page in light and dark

This script needs Chromium: an installation of the system, or `playwright install chromium`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from peer.demo.swarm import free_port
from peer.import_path import python_command, python_environment

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 800
"""Size of a laptop's screen: the part of the page that a visitor sees without scrolling."""
SHARE = 0.8
"""Share of the training after which the pictures are taken: one peer was killed, and the late peer is training."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""Path of Chromium; None for the copy that playwright has installed."""
LINE = " s  steps: "
"""Part of each line that a demo prints during training."""


def main() -> None:
    """Run a demo and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.2, help="of training; the goal of longer ones is reached")
    minutes = parser.parse_args().minutes
    port = free_port()
    command = python_command("peer", "demo", "--minutes", f"{minutes:g}", "--port", str(port), "--json")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=python_environment()) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            print(line, end="", flush=True)
            if LINE in line and float(line.split()[0]) >= SHARE * 60 * minutes:
                break
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM)
            _take_all(browser, f"http://127.0.0.1:{port}")
            browser.close()
        for line in demo.stderr:
            print(line, end="", flush=True)


def _take_all(browser: Browser, page: str) -> None:
    with urllib.request.urlopen(f"{page}/api/v1/contributors") as answer:
        best = json.load(answer)["contributors"][0]
    _take(browser, f"{page}/", "dashboard.png", "light")
    _take(browser, f"{page}/", "dashboard-dark.png", "dark")
    _take(browser, f"{page}/c/{best['contributor_id']}", "dashboard-contributor.png", "light")


def _take(browser: Browser, address: str, name: str, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if scheme == "dark" else "light"
    )
    shown = context.new_page()
    shown.goto(address)
    shown.wait_for_load_state("load")
    shown.wait_for_timeout(3000)
    shown.screenshot(path=IMAGES / name)
    context.close()
    print(f"{IMAGES / name}", flush=True)


if __name__ == "__main__":
    main()
