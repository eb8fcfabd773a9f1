"""The box for joining: what it asks of a home, systems to choose from, and commands that are whole."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.join_addresses import repository_of
from dashboard.observe.shown_manifest import ShownManifest, run_facts
from dashboard.page.environment import shell_line
from dashboard.page.page import render_sections
from dht.identity.join_link import join_link
from dht.records.signed_manifest import sign_run_record
from peer.config.manifest import RunManifest
from peer.config.model_section import InitSection
from peer.config.model_shapes import seed_sizes
from peer.plan.planning import plan_run
from peer.plan.usual_home_needs import HomeNeeds, home_needs
from tests.kit.dashboard.records import HOSTILE_NAME, NOW, OWNER, RUN_ID, TextOnly
from tests.kit.dashboard.scene import state_of

NOBODY = HistoryView(NOW, NOW)
ADDRESS = "/ip4/203.0.113.5/tcp/4001/p2p/12D3KooWLLT8g5ttNUeZqSADrztTvkAVvFuU56quYDCpwHy4wKaA"
LINK = join_link(RUN_ID, [ADDRESS]).word
PAGE = "https://starlings.example.org"


def live(**changes: Any) -> DashboardState:
    state = replace(state_of(), join_addresses=(ADDRESS,))
    assert state.run is not None
    return replace(state, run=replace(state.run, **changes))


def card(state: DashboardState) -> str:
    return render_sections(state, NOBODY)["join"]


def text(state: DashboardState) -> str:
    return TextOnly(card(state)).text


def test_what_is_asked_of_a_home_is_said_in_words() -> None:
    said = " ".join(text(live(needs=HomeNeeds(75_463_128, 445_679_730, 0, 270_574.0, 0.0))).split())
    assert (
        "about 446 MB of memory, 75.5 MB of disk beside the program (up to 6 GB), and 271 kbit/s of your connection"
        in said
    )
    unknown = text(live())
    assert "It takes about" not in unknown
    assert "Any processor will do" in unknown


@pytest.mark.parametrize("files", [[], [{"name": "tokenizer.json", "bytes": 1_000_000, "digest": 64 * "0"}]])
def test_needs_are_those_of_the_planner(files: list[dict[str, object]]) -> None:
    manifest = RunManifest.from_fields({"name": "tinybytes", "files": files})
    plan = plan_run(manifest, seed_sizes(manifest))
    home = plan.home
    found = run_facts(sign_run_record(RUN_ID, manifest.to_bytes(), OWNER)).needs
    assert found == home_needs(manifest)
    assert found is not None
    assert found.disk_bytes == plan.disk_bytes
    assert found.memory_bytes == home.trainer_memory.total_bytes + home.network_memory.total_bytes
    assert 0 < home.needed_upload_bits_per_second <= found.bits_per_second


def test_every_system_has_its_own_commands_and_all_are_in_the_page() -> None:
    shown = card(live())
    assert re.findall(r'<label for="system-(\w+)">([\w ()]+)<', shown) == [
        *(("linux", "Linux"), ("mac", "Mac"), ("windows", "Windows (WSL)"), ("docker", "Docker"))
    ]
    words = TextOnly(shown).text
    assert "wsl --install" in words
    assert "docker run -it --rm" in words
    assert words.count("pip install ./FOLDER") == 4


def test_a_visitor_of_a_run_of_transformers_installs_what_it_needs() -> None:
    assert text(live(model_kind="hf")).count("pip install './FOLDER[hf]'") == 4
    state = replace(live(model_kind="hf"), install="pip install git+https://example.org/code")
    wanted = "pip install 'murmuration-swarm[hf] @ git+https://example.org/code'"
    assert text(state).count(wanted) == 4


def test_an_organiser_says_how_visitors_get_the_program() -> None:
    words = text(replace(live(), install="pip install git+https://example.org/code"))
    assert words.count("pip install git+https://example.org/code") == 4
    assert "murmuration-swarm" not in words
    hostile = TextOnly(card(replace(live(), install=HOSTILE_NAME)))
    assert hostile.tags == TextOnly(card(replace(live(), install="pip install it"))).tags


@pytest.mark.parametrize("is_over", [False, True])
def test_without_a_line_that_works_for_all_the_organiser_has_the_program(is_over: bool) -> None:
    """Nobody is told to install a package whose name anybody may register."""
    state = live(**({"end_version": 0} if is_over else {}))
    sections = render_sections(state, NOBODY)
    for key in ("join", "model", "way-in")[: 1 if is_over else 3]:
        words = TextOnly(sections[key]).text
        asked = "First ask the run's organiser for Murmuration's folder."
        assert asked in " ".join(words.split()), key
        assert "murmuration-swarm" not in words
        assert ("pip install ./FOLDER" in words) is (key != "way-in")
    known = render_sections(replace(state, install="pip install it"), NOBODY)
    assert "organiser for" not in "".join(known.values())


def test_commands_are_whole_and_begin_with_the_doctor() -> None:
    words = text(live(page=PAGE))
    doctor, join = (words.index(f"peer {name} {LINK}") for name in ("doctor", "join"))
    assert doctor < join < words.index(f"peer join {PAGE}")


@pytest.mark.parametrize("changes", [{}, {"page": PAGE, "is_private": True}])
def test_the_short_command_is_for_open_runs_with_a_page(changes: dict[str, Any]) -> None:
    assert "peer join https" not in text(live(**changes))
    assert ("--invite FILE" in text(live(**changes))) is bool(changes)


def test_flags_are_not_broken_at_their_hyphens_and_texts_of_strangers_are_text() -> None:
    assert shell_line("peer join a-b --invite FILE") == ('peer join a-b <span class="flag">--invite</span> FILE')
    long = "murmuration://a-b" + 30 * "c"
    assert shell_line(f"peer join {long}") == f'peer join <span class="link">{long}</span>'
    assert shell_line("a <b> --<i>") == 'a &lt;b&gt; <span class="flag">--&lt;i&gt;</span>'


def test_a_run_on_given_weights_says_that_each_volunteer_needs_them() -> None:
    init = InitSection(source="folder", digest=64 * "0", num_bytes=16_000_000_000)
    words = " ".join(
        text(
            live(weights=init, flags_to_bring=" --base DIR", needs=HomeNeeds(180_000, 400_000_000, 0, 1e5, 0.0))
        ).split()
    )
    assert "180 kB of disk beside the program (up to 6 GB) and the weights that it begins with (16.0 GB)" in words
    assert f"peer join {LINK} --base DIR" in words
    assert f"peer doctor {LINK} --base DIR" in words
    assert "the run's owner can tell you where to get them" in words
    hub = text(live(weights=init.model_copy(update={"source": "hub:org/name@main"})))
    assert "--base DIR" not in hub
    assert "--base DIR" not in text(live())


def test_the_model_of_an_ended_run_comes_home_as_it_does_from_a_live_one() -> None:
    def ends(**changes: Any) -> str:
        state = live(end_version=1, **changes)
        assert state.phase == "ended"
        return text(state)

    assert f"peer export {LINK} --out model\n" in ends()
    assert f"peer export {LINK} --invite FILE --out model\n" in ends(is_private=True)
    gone = replace(live(end_version=1), join_addresses=())
    assert f"peer export {RUN_ID} --checkpoint DATA_DIR --out model\n" in text(gone)


def test_an_address_of_this_machine_alone_is_said_to_be_one() -> None:
    """Before the command, where it is read."""
    words = "works only on the machine that"
    assert words not in text(live())
    local = replace(live(), join_addresses=(ADDRESS.replace("203.0.113.5", "127.0.0.1"),))
    assert words in text(local)
    way_in = render_sections(local, NOBODY)["way-in"]
    assert way_in.index(words) < way_in.index("peer join")
    assert text(local).index(words) < text(local).index("peer doctor")
    assert words not in text(replace(local, join_addresses=(*local.join_addresses, ADDRESS)))
    assert words not in text(replace(local, join_addresses=()))


def test_a_run_on_text_of_each_volunteer_says_so_in_the_command() -> None:
    words = " ".join(text(live(flags_to_bring=" --data text:PATH", page=PAGE)).split())
    assert f"peer join {LINK} --data text:PATH" in words
    assert f"peer join {PAGE} --data text:PATH" in words
    assert "everyone who joins uses their own data" in words
    assert "--data" not in text(live(page=PAGE))
    manifest = RunManifest.from_fields({"name": "starlings", "data": {"source": "text:"}})
    assert run_facts(sign_run_record(RUN_ID, manifest.to_bytes(), OWNER)).flags_to_bring == " --data text:PATH"


def test_the_first_screen_has_the_whole_way_in_also_for_a_phone() -> None:
    install = "pip install git+https://example.org/code@v1"

    def way_in(**changes: Any) -> TextOnly:
        return TextOnly(render_sections(replace(live(**changes), install=install), NOBODY)["way-in"])

    lines = ["python3 -m venv peers && . peers/bin/activate", install, f"peer join {PAGE} --data text:PATH"]
    shown = way_in(page=PAGE, flags_to_bring=" --data text:PATH")
    assert "\n".join(lines) in shown.text
    assert ("href", "https://example.org/code") in shown.attributes
    # Where these lines would not do, the steps below say what does.
    for changes in ({"is_private": True}, {"model_kind": "custom"}, {"end_version": 0}):
        assert not way_in(page=PAGE, **changes).text.strip()
    assert not render_sections(replace(live(), join_addresses=()), NOBODY)["way-in"]


def test_the_repository_is_that_of_the_line_and_of_no_other() -> None:
    assert repository_of("pip install 'git+https://example.org/a/b.git@v1#egg=c'") == "https://example.org/a/b.git"
    for line in ("pip install murmuration", "pip install https://example.org/a.tar.gz", "pip install git+ssh://a@b/c"):
        assert repository_of(line) == ""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("stdlib:", "Python's standard library"),
        ("text:", "data of their own"),
        ("tokens:", "data of their own"),
        ("hf:org/books@main", "org/books, a data set of the Hugging Face hub"),
        ("https://example.org/shards/meta.json", "data at example.org"),
        (7, ""),
        (None, ""),
    ],
)
def test_what_the_model_is_trained_on_is_what_the_manifest_names(source: str | int | None, words: str) -> None:
    def facts(**model: Any) -> ShownManifest:
        manifest = {"revision": 1, "data": {"source": source}, "model": {"vocab_size": 300, **model}}
        return run_facts(sign_run_record(RUN_ID, json.dumps(manifest).encode(), OWNER))

    assert (facts().trained_on, facts().num_choices) == (words, 300)
    of_custom = facts(layout_digest="ab" * 32)
    assert (of_custom.trained_on, of_custom.num_choices) == ("", None)
    assert facts(vocab_size=None).num_choices is None
