"""What the page shows of the model's samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.history_facts import ModelSample, WrittenText
from dashboard.page.annotations import chosen_samples
from dashboard.page.page import render_sections
from tests.kit.dashboard.records import NOW, TextOnly
from tests.kit.dashboard.scene import history_of_run, samples_of, state_of


def test_the_first_some_between_and_the_newest_are_listed() -> None:
    samples = samples_of()
    chosen = chosen_samples(samples)
    assert len(chosen) == 5
    assert (chosen[0], chosen[-1]) == (samples[-1], samples[0])
    assert chosen == sorted(chosen, key=lambda one: -one.at)
    assert chosen_samples(samples[:3]) == list(reversed(samples[:3]))
    assert chosen_samples(()) == []


def test_the_page_shows_what_the_model_writes_without_scripts() -> None:
    sections = render_sections(state_of(), history_of_run())
    now, past = TextOnly(sections["writes"]), TextOnly(sections["samples"])
    assert "for name in sorted(os.listdir(path)):\n        yield name" in now.text
    assert "after 335 million tokens" in now.text
    assert "after 335 million tokens, version 3673, validation loss 1.730" in past.text
    assert past.text.count("def ") >= 5
    assert "Newest" in past.text
    assert "First" in past.text


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (("", "\n"), "The model begins each text itself."),
        (("", "def "), "Each time, the model begins one text itself, and continues the same words, shown in bold."),
        (("def ", "class "), "The model continues the same words each time, shown in bold."),
    ],
)
def test_what_is_said_of_its_first_words_is_true(prompts: tuple[str, ...], said: str) -> None:
    texts = tuple(WrittenText(prompt, "x") for prompt in prompts)
    sections = render_sections(state_of(), replace(history_of_run(), samples=(ModelSample(NOW, 1, 9, None, texts),)))
    assert said in " ".join(TextOnly(sections["samples"]).text.split())


def test_without_samples_nothing_is_shown() -> None:
    sections = render_sections(state_of(), replace(history_of_run(), samples=()))
    assert not sections["writes"].strip()
    assert not sections["samples"].strip()
