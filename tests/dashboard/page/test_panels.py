"""The page's panels as rendered by the server: what they say, what they leave out, and that strangers' text is text."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from dashboard.history_facts import Gap, HistoryView, MissingRounds, TrafficTotals
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.page.assets import Assets, load_assets
from dashboard.page.contributor import render_contributor
from dashboard.page.page import Frame, render_page, render_sections
from dashboard.page.ranking import MAX_CONTRIBUTORS_SHOWN, render_people
from dashboard.page.rounds import JOINING_SECONDS, MAX_LANES, lone_words
from dht.ground.quantities import age_text, choices_text
from dht.identity.join_link import join_link
from peer.events.lone_rounds import LONE_ROUNDS
from tests.kit.dashboard.records import NOW, PEERS, RUN_ID, TextOnly, empty_state, record_of
from tests.kit.dashboard.scene import (
    NAMES,
    contributor_of,
    contributor_view,
    history_of_run,
    peer_id_of,
    rounds_of,
    state_of,
)

NOBODY = HistoryView(NOW, NOW)


def text_of(section: str, history: HistoryView) -> str:
    return TextOnly(render_sections(state_of(), history)[section]).text


def assets() -> Assets:
    return load_assets()


def test_every_panel_explains_that_it_is_empty() -> None:
    sections = render_sections(empty_state(), NOBODY)
    for key in ("contributors", "timeline", "fragments", "health", "bandwidth", "rounds", "peers"):
        assert "empty" in dict(TextOnly(sections[key]).attributes).values(), key
        assert len(TextOnly(sections[key]).text) > 30, key
    page = render_page(empty_state(), sections, NOBODY, Frame(NOW, assets(), "b-1"))
    own = render_contributor(empty_state(), replace(contributor_view(), curve=()), Frame(NOW, assets(), "b"))
    for html, keys in ((page, ("losses", "swarm", "lines")), (own, ("work",))):
        begins = re.findall(r'data-chart="(\w+)">\s*<p class="empty">[^<]* begins ', html)
        assert begins == list(keys)


def test_contributors_are_ranked_by_what_others_witnessed_and_say_what_is_only_reported() -> None:
    text = text_of("contributors", history_of_run(12))
    assert text.index("Ada") < text.index("basement-4090") < text.index("Lindström")
    assert "111 M self-reported" in text
    assert "2 more machines claim to be here; no other machine has confirmed their work yet" in text
    honest = replace(contributor_of(0), milli_tokens_reported=contributor_of(0).milli_tokens_witnessed)
    assert "reported" not in text_of("contributors", replace(NOBODY, contributors=(honest,)))
    unranked = replace(contributor_of(0), rank=0, milli_tokens_witnessed=0, share=0.0)
    assert (
        "nothing confirmed yet"
        in render_sections(empty_state(), replace(NOBODY, contributors=(unranked,)))["contributors"]
    )


def test_a_long_list_is_cut_and_says_so() -> None:
    html = render_sections(state_of(80), history_of_run(80))
    assert html["contributors"].count("<tr") == 1 + MAX_CONTRIBUTORS_SHOWN
    assert 'limit=75#contributors-title">Show 75 at a time</a>' in html["contributors"]


def test_what_was_searched_for_is_shown_like_the_ranking() -> None:
    history = history_of_run(80)
    people = history.contributors
    html = render_people(state_of(), people[30:70], history, sort="name", limit=30, search="a b", now=NOW)
    assert 'data-found="40 of 80 contributors"' in html
    assert html.count("<tr") == 1 + 30
    assert 'sort=name&amp;search=a%20b&amp;limit=75#contributors-title">Show all 40</a>' in html
    assert re.findall(r'data-sort="(\w+)" aria-sort="(\w+)"', html) == [("name", "ascending")]
    last = render_people(state_of(), people, history, sort="tokens", limit=75, offset=75, now=NOW)
    assert last.count("<tr") == 1 + 5
    assert "76 to 80 of 80 contributors" in last
    assert "Next" not in last
    nobody = render_people(state_of(), (), history, sort="tokens", limit=30, search="x", now=NOW)
    assert 'data-found="0 of 80 contributors"' in nobody
    assert "No contributor has that name" in nobody


def test_the_newest_contributors_come_first() -> None:
    late = replace(contributor_of(3), first_at=NOW - 60)
    unranked = replace(contributor_of(4), first_at=NOW, rank=0)
    text = text_of("feed", replace(NOBODY, contributors=(contributor_of(0), late, unranked)))
    assert text.split() == [*NAMES[3].split(), *NAMES[0].split()]


def test_teams_are_there_when_somebody_names_one() -> None:
    text = text_of("teams", history_of_run(12))
    assert "Night owls" in text
    assert "Kabel & Co" in text
    assert "There are no teams yet" in text_of("teams", NOBODY)


def test_machines_are_listed_under_their_owner() -> None:
    page = TextOnly(render_sections(empty_state(), history_of_run(2))["contributors"])
    assert "3 machines" in page.text
    assert all(peer_id_of(1 + 100 * number)[-8:] in page.text for number in range(3))


def test_lanes_say_in_words_how_long_each_phase_was() -> None:
    page = TextOnly(render_sections(state_of(), history_of_run())["timeline"])
    labels = [value for name, value in page.attributes if name == "aria-label" and value]
    assert len(labels) == 8
    assert all(re.match(r"\d+ rounds in .*: computes .*, sends .*, receives .*, applies ", label) for label in labels)
    silent = render_sections(replace(state_of(), lanes={}), history_of_run())["timeline"]
    assert "takes part in a round" in TextOnly(silent).text


def test_lanes_are_bounded_however_many_take_part() -> None:
    crowd = tuple(replace(row, contributors=tuple(map(str, range(2000)))) for row in rounds_of())
    nobody_tells = replace(state_of(), lanes={})
    html = render_sections(nobody_tells, replace(history_of_run(), rounds=crowd))["timeline"]
    assert html.count('<div class="lane"') == MAX_LANES
    assert "1984 more peers not drawn" in html


def test_rounds_of_one_member_are_not_called_shared() -> None:
    lone = tuple(replace(row, contributors=row.contributors[:1]) for row in rounds_of())
    number, num_trainers = len(lone), len(state_of().trainers)
    words = f"{num_trainers} machines train, but the newest {number} rounds had one member each: they share nothing"
    history = replace(history_of_run(), rounds=lone)
    assert words in text_of("status", history)
    assert words in text_of("health", history)
    quiet = tuple(
        replace(row, num_missed=0, num_void_shards=0, drop_reasons=()) for row in (*lone[:-1], rounds_of()[-1])
    )
    assert "No work was left out" not in text_of("health", replace(history, rounds=quiet))
    shared = replace(history_of_run(), rounds=(rounds_of()[0], *lone[1:]))
    starts = [record.started_at for record in state_of().trainers]
    assert lone_words(lone, starts)
    assert not lone_words(shared.rounds, starts)
    assert "they share nothing" not in text_of("status", shared) + text_of("health", shared)
    assert not lone_words(lone, starts[:1])
    assert not lone_words(lone[: LONE_ROUNDS - 1], starts)
    # The first was alone until a moment ago: its rounds before that are nobody's fault.
    assert not lone_words(lone, [starts[0], max(row.seen_at for row in lone) - JOINING_SECONDS])


def test_rounds_that_a_peer_counts_are_not_headed_as_those_that_were_signed() -> None:
    assert "Own rounds" in render_sections(state_of(), NOBODY)["peers"]
    assert "Own rounds" not in render_sections(state_of(), history_of_run())["contributors"]


def test_an_anchor_of_one_peer_is_equal_to_nothing() -> None:
    state = state_of()
    html = render_sections(
        replace(state, fragments=(replace(state.fragments[0], num_current=1, num_forked=0),)), NOBODY
    )
    assert "nothing to compare with" in TextOnly(html["fragments"]).text
    assert "equal" not in TextOnly(html["fragments"]).text
    assert "equal" in TextOnly(render_sections(state, NOBODY)["fragments"]).text


def test_reasons_of_drops_are_words_and_add_up() -> None:
    text = text_of("health", history_of_run())
    assert "83.3%" in text
    assert "5was late: the deadline passed" in text
    assert "1shards that no reducer delivered" in text
    silent = tuple(replace(row, drop_reasons=()) for row in rounds_of())
    assert "5planned, but none of its work arrived" in text_of("health", replace(history_of_run(), rounds=silent))
    perfect = tuple(replace(row, num_missed=0, num_void_shards=0, drop_reasons=()) for row in rounds_of())
    assert "No work was left out" in text_of("health", replace(history_of_run(), rounds=perfect))
    # Where a part of somebody's work came too late, the round is not complete.
    partly = (replace(perfect[0], drop_reasons=(("only a part of its work arrived in time", 1),)), *perfect[1:])
    assert f"{len(perfect) - 1} of the newest" in text_of("health", replace(history_of_run(), rounds=partly))


@pytest.mark.parametrize(
    ("bandwidth", "words"),
    [
        (TrafficTotals(1e9, 1.38e12), "1\u202f380 times less"),
        (TrafficTotals(1e9, 2.5e9), "2.5 times less"),
        (TrafficTotals(4e9, 2e9), "2 times more"),
        (TrafficTotals(1e9, None), "1.00 GB of encoded values went"),
    ],
)
def test_bandwidth_is_compared_only_with_what_is_known(bandwidth: TrafficTotals, words: str) -> None:
    text = text_of("bandwidth", replace(NOBODY, bandwidth=bandwidth))
    assert words in text
    assert ("data-parallel" in text) == (bandwidth.data_parallel_bytes is not None)


def test_what_the_page_does_not_know_is_said() -> None:
    holes = replace(NOBODY, gaps=(Gap(NOW - 90, NOW, "this page was off"),), missing=(MissingRounds(2, 5, 9),))
    text = text_of("gaps", holes)
    assert "this page was off" in text
    assert "fragment 2, versions 5 to 9" in text


def test_a_contributors_page_has_its_proof_and_its_address() -> None:
    view = contributor_view(1)
    frame = Frame(NOW, assets(), "b-1", "https://run.example.org", "/c/x", "/card/x.png")
    html = render_contributor(state_of(), view, frame)
    page = TextOnly(html)
    links = {value for name, value in page.attributes if name in ("href", "src")}
    key = view.row.contributor_id
    assert {f"/api/v1/contributors/{key}/proof", "/"} <= links
    assert "peer receipts verify" in page.text
    assert "Confirmed: 52.2 M tokens, signed by 4 others." in page.text
    assert ("href", f"/?tab=people&you={key}") in page.attributes
    assert "2 of 12" in page.text
    assert f"Next above: Ada {peer_id_of(0)[-8:]}" in page.text
    assert "every sixth token" in page.text
    assert html.count('class="work-0"') > 10
    assert "<title>" in html
    assert 'content="https://run.example.org/card/x.png"' in html
    assert f"https://run.example.org/c/{key}" in page.text
    alone = render_contributor(state_of(), view, Frame(NOW, assets(), "b-1"))
    assert "og:image" not in alone
    fresh = replace(view.row, rounds=0, rounds_missed=0, milli_tokens_witnessed=0, rank=0, machines=())
    empty = replace(view, row=fresh, curve=(), rounds=(), days=())
    text = TextOnly(render_contributor(state_of(), empty, Frame(NOW, assets(), "b-1"))).text
    assert "not ranked yet" in text
    assert "join with --contributor-key FILE" in text
    assert "Nothing is confirmed yet" in text
    assert "Check it yourself" not in text


def test_a_page_of_an_ended_run_invites_nobody_and_misses_nobody() -> None:
    live = state_of()
    assert live.run is not None
    late = replace(live, peers=tuple(replace(row, condition="late") for row in live.peers))
    ended = replace(late, run=replace(live.run, end_version=1))
    assert ended.phase == "ended"
    for state, has_ended in ((late, False), (ended, True)):
        sections = render_sections(state, NOBODY)
        html = render_page(state, sections, NOBODY, Frame(NOW, assets(), "b-1"))
        text = TextOnly(html).text
        for words in ("Anyone can join", "Join with your machine", "unresponsive", "Training now", "Rounds, live"):
            assert (words in text) != has_ended, words
        assert ("Download the model" in text) == has_ended
        assert ("Took part" in text) == has_ended
        # The one command to take it home, which asks nobody if nobody is there.
        assert ("--peers ADDRESS --out" in text) != has_ended
        assert ('class="late"' in html) != has_ended


def test_who_has_gone_keeps_the_name() -> None:
    """A page that was started again after everybody had left knows them from its history alone."""
    history = history_of_run()
    ada = history.contributors[0]
    assert ada.name == "Ada"
    gone = replace(empty_state(), run=state_of().run)
    rounds = (replace(history.rounds[0], leader=ada.machines[0].peer_id),)
    assert "Ada" in TextOnly(render_sections(gone, replace(history, contributors=(ada,), rounds=rounds))["rounds"]).text


def test_a_loss_says_what_it_is() -> None:
    def figures(history: HistoryView, **changes: Any) -> str:
        state = state_of()
        assert state.run is not None
        changed = replace(state, run=replace(state.run, **changes))
        return " ".join(TextOnly(render_sections(changed, history)["figures"]).text.split())

    whole = history_of_run()
    # exp(1.7312) = 5.647
    assert "like guessing among 5.65 tokens; measured" in figures(whole)
    known = figures(whole, loss_unit="nats per byte", num_choices=256)
    assert "like guessing among 5.65 characters, 256 by chance; measured" in known
    assert "Loss (nats per byte): how badly the model guesses unseen text; 0 is best" in known
    assert "lower is better; measured" in figures(whole, loss_unit="")


def test_a_loss_that_tells_nothing_is_no_number_of_choices() -> None:
    assert [choices_text(loss) for loss in (0.0, 1.298, 5.3, 10.0)] == ["1", "3.66", "200", "22.0 k"]
    assert [choices_text(loss) for loss in (None, -0.1, 21.0, math.inf, math.nan)] == 5 * [""]


def test_one_machine_is_not_machines() -> None:
    one = fold(empty_state(), Look(now=NOW, num_members=1, records=[record_of(PEERS[0])]))
    text = " ".join(TextOnly(render_sections(one, NOBODY)["figures"]).text.split())
    assert "Training now1machine self-reported" in text


def test_without_addresses_the_join_box_says_where_to_get_one() -> None:
    def page(*addresses: str) -> str:
        state = replace(state_of(), join_addresses=addresses)
        sections = render_sections(state, NOBODY)
        shown = render_page(state, sections, NOBODY, Frame(NOW, assets(), "b-1"))
        return TextOnly(shown).text

    assert f"peer join {RUN_ID} --peers ADDRESS" in page()
    assert "ask the owner of the run for one" in page()
    assert "pip install ./FOLDER" in page()
    first, second = (f"/ip4/203.0.113.{index}/tcp/1/p2p/{peer_id_of(index)}" for index in (0, 1))
    assert f"peer export {join_link(RUN_ID, [first, second]).word} --out model" in page(first, second)
    assert "ADDRESS" not in page(first)
    # The same in one line beside the name, where there is an address.
    assert f"peer join murmuration://{RUN_ID}@203.0.113.0:1/{peer_id_of(0)}" in page(first)
    assert "murmuration://" not in page()


def test_a_custom_run_invites_to_its_code_and_not_to_peer_join() -> None:
    def join(**changes: str) -> TextOnly:
        state = state_of()
        assert state.run is not None
        run = replace(state.run, model_kind="custom", **changes)
        return TextOnly(render_sections(replace(state, run=run), NOBODY)["join"])

    code = f"https://example.org/team/<b>code</b>@{'0' * 40}"
    shown = join(code=code)
    assert code in shown.text
    assert RUN_ID in shown.text
    assert f"peer join {RUN_ID}" not in shown.text
    assert "murmuration://" not in shown.text
    # Nobody gets there by a slip of the finger.
    assert not [value for name, value in shown.attributes if name in ("href", "src")]
    assert "The run does not specify its address; ask the owner." in join().text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "just now"), (3.9, "3 s ago"), (75, "1 min ago"), (7300, "2 h ago"), (172_800, "2 d ago")],
)
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
