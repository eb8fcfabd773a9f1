"""The page's own files: what the bundle holds, whose notices it carries, and what happens without one."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import shutil
from pathlib import Path

import pytest

from dashboard.page.assets import LICENSES, load_assets, read_bundle
from tests.kit.dashboard.records import PEERS, record_of, state_with
from tests.kit.dashboard.serving import site
from tests.kit.web_bundle import WEB, load_web_build, require_bundle

MAX_COMPRESSED_BYTES = 150_000
"""Of script and style together, with gzip."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the bundle's sources, without npm's folder and without a bundle."""
    return Path(shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("node_modules", "built")))


def test_every_bundled_package_has_its_notice() -> None:
    require_bundle()
    packages = json.loads((WEB / "built" / "bundle.json").read_text())["packages"]
    notices = (WEB / "built" / LICENSES).read_text()
    wanted = json.loads((WEB / "package.json").read_text())["dependencies"]
    assert set(packages) == set(wanted)
    for name, version in wanted.items():
        _, found, notice = notices.partition(f"{name} {version}\n")
        assert found
        assert "Copyright" in notice
    assert notices.count("Permission is hereby granted") + notices.count("Apache License") >= len(packages)


def test_a_package_without_a_licence_cannot_be_bundled(sources: Path) -> None:
    web_build = load_web_build()
    package = sources / "node_modules" / "nameless"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "1.0.0"}')
    assert web_build.bundled_packages(["src/app.js", "node_modules/nameless/a.js", "node_modules/@x/y/b.js"]) == [
        "@x/y",
        "nameless",
    ]
    with pytest.raises(web_build.NotBuilt, match="nameless has no licence file"):
        web_build.licenses_text(sources, ["nameless"])


def test_the_bundle_is_small() -> None:
    require_bundle()
    assets = load_assets()
    size = sum(len(assets.files[name].compressed) for name in (assets.script, assets.style))
    assert 10_000 < size < MAX_COMPRESSED_BYTES


def test_the_lock_file_pins_contents_and_names_no_host() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    locked = {name: facts for name, facts in packages.items() if name}
    assert {"node_modules/uplot", "node_modules/preact", "node_modules/htm", "node_modules/esbuild"} <= set(locked)
    for name, facts in locked.items():
        assert facts["integrity"].startswith("sha512-"), name
        assert "resolved" not in facts, name


def test_an_edited_source_makes_the_bundle_old(sources: Path) -> None:
    web_build = load_web_build()
    (sources / "built").mkdir()
    (sources / "built" / "bundle.json").write_text(json.dumps({"sources": web_build.sources_hash(sources)}))
    assert web_build.is_current(sources)
    assert web_build.build(sources) is False
    with (sources / "src" / "app.js").open("a") as script:
        script.write("// changed\n")
    assert not web_build.is_current(sources)


def test_without_npm_the_reason_is_kept_and_the_old_bundle_goes(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web_build = load_web_build()
    (sources / "built").mkdir()
    (sources / "built" / "app-OLD.js").write_text("old")
    monkeypatch.setattr(web_build.shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(web_build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(web_build.NotBuilt, match="npm is not installed; install"):
        web_build.build(sources)
    assert [path.name for path in (sources / "built").iterdir()] == ["not-built.txt"]


@pytest.mark.parametrize("kept", [[], ["not-built.txt"], ["bundle.json"]], ids=["nothing", "reason", "half a bundle"])
def test_a_missing_bundle_is_one_line_in_the_log(
    kept: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "built").mkdir()
    contents = {
        "not-built.txt": "npm could not fetch the page's libraries.",
        "bundle.json": '{"style": "app-1.css", "script": "app-1.js"}',
    }
    for name in kept:
        (tmp_path / "built" / name).write_text(contents[name])
    with caplog.at_level(logging.WARNING):
        assert read_bundle(tmp_path) is None
    assert "complete but not live" in caplog.text
    assert "Traceback" not in caplog.text
    expected = {"not-built.txt": "npm could not fetch", "bundle.json": "lacks app-1.css, app-1.js"}
    assert all(expected[name] in caplog.text for name in kept)


def test_hashed_files_may_be_kept_for_ever_and_come_compressed() -> None:
    async def check() -> None:
        async with site(state_with(record_of(PEERS[0]))) as (_, client):
            assets = load_assets()
            for name, kept in ((assets.style, "immutable"), ("favicon.svg", "no-cache")):
                response = await client.get(f"/assets/{name}", headers={"Accept-Encoding": "gzip"})
                assert response.headers["Content-Encoding"] == "gzip"
                assert kept in response.headers["Cache-Control"]
                assert await response.read() == gzip.decompress(assets.files[name].compressed)
                plain = await client.get(f"/assets/{name}", headers={"Accept-Encoding": "identity"})
                assert "Content-Encoding" not in plain.headers
            assert (await client.get("/assets/app-0.js")).status == 404

    asyncio.run(check())
