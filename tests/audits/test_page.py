import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from records import MEMBERS, PROPERTY, STEPS, audit, defence, held, inapplicable, leak, picture, powerless, private

from sketchfed.audits.findings import PicturePair
from sketchfed.audits.page import write_page
from sketchfed.audits.verdicts import headline, strongest

NASTY = """</pre></table></style><script>alert(1)</script><img src=x onerror=alert(2)> "'&amp;"""
EMPTY_ELEMENTS = {"meta", "img", "br"}


class Page(HTMLParser):
    """A written page, taken apart; fails on elements that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1:] != ["style"]:
            self.texts.append(text)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def images(self) -> list[dict[str, str | None]]:
        return [given for tag, given in self.tags if tag == "img"]


@pytest.fixture
def page(tmp_path):
    return lambda record: Page(write_page(record, tmp_path / "audit.html"))


def rows(made: Page) -> list[str]:
    """The defences of the main table as HTML."""
    table = made.source.partition('<table class="defences">')[2].partition("</table>")[0]
    return re.findall(r"<tbody>.*?</tbody>", table, re.DOTALL)


def details(made: Page) -> list[str]:
    return re.findall(r"<details>.*?</details>", made.source, re.DOTALL)


def chips(text: str) -> list[str]:
    return re.findall(r'<span class="verdict \w+">([^<]+)</span>', text)


def test_a_page_runs_no_script_and_fetches_nothing(page):
    made = page(audit())
    (policy,) = (given["content"] for _, given in made.tags if given.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; script-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert not {tag for tag, _ in made.tags} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"https?:|@import|url\(|//\w", re.sub(r"base64,[^\"]+", "", made.source))
    assert all(given["src"].startswith("data:image/png;base64,") for given in made.images)
    assert all(given["href"].startswith("#") for _, given in made.tags if "href" in given)


def test_texts_of_a_record_never_become_markup(page):
    texts = {"role": NASTY, "attack": NASTY, "reason": NASTY, "details": {NASTY: 1.0}}
    finding = leak(**texts, pictures=[PicturePair(truth=NASTY, guess=NASTY, decibels=1.0)])
    nasty = private(NASTY, finding, label=NASTY, config=NASTY, claim=NASTY)
    plain = private("p", replace(finding, role="r", attack="a", reason="r", details={"d": 1.0}))
    made, tame = page(audit(nasty, setting=NASTY, version=NASTY)), page(audit(plain))
    assert [tag for tag, _ in made.tags] == [tag for tag, _ in tame.tags]
    assert not [name for _, given in made.tags for name in given if name.startswith("on")]
    assert "".join(made.texts).count(NASTY) >= 10


def test_epsilon_is_never_shown_without_calibrated_noise(page):
    every = (leak(), STEPS, PROPERTY, MEMBERS)
    made = page(audit(defence("bare", *every, claim="ε = 1.00, so they say"), private("noisy", *every)))
    (bare, noisy), (bare_details, _) = rows(made), details(made)
    assert "no claim" in bare
    assert "ε" not in bare + bare_details
    assert "1.00" not in bare
    assert '<td class="claim">3.00<small>at δ = 1e-05, client level, zero-out, against the server (PLD)</small>' in noisy


def test_a_measured_loss_is_rounded_down_and_a_claimed_one_up(page):
    made = page(audit(private("noisy", MEMBERS)))
    assert "privacy loss at least 0.12," in made.text
    assert "3.00at δ" in made.text


def test_the_strongest_attack_on_examples_is_named_and_shown_beside_the_originals(page):
    weak, strong = leak(22.5), leak(31.25, role="network", attack="analytic", pictures=[picture(31.25), picture(33.0)])
    (row,) = rows(page(audit(defence("sketch", weak, strong))))
    assert "network,\nanalytic</strong>, PSNR 31.2 dB, chance 9.5 dB" in row
    assert re.findall(r"<figcaption>([^<]+)</figcaption>", row) == ["31.2 dB", "33.0 dB"]
    assert re.findall(r"base64,([^\"]+)", row) == [part for each in strong.pictures for part in (each.truth, each.guess)]


def test_a_leak_is_stronger_than_a_higher_score_that_is_none():
    worst = leak(18.5)
    assert strongest(defence("d", held(25.0), worst, powerless(30.0), inapplicable()), "examples") is worst
    assert strongest(defence("d", powerless(30.0), held(9.0), inapplicable()), "examples") == held(9.0)
    assert strongest(defence("d", worst), "steps") is None


def test_pictures_are_enlarged_by_whole_numbers_and_told_in_words(page):
    made = page(audit(defence("d", leak(20.0, pictures=[picture(20.0, side) for side in (8, 28, 32, 100)]))))
    assert [given["width"] for given in made.images[:8:2]] == ["64", "56", "64", "100"]
    assert made.images[0]["alt"] == "original 1"
    assert made.images[1]["alt"] == "guess of original 1, 20.0 dB"
    assert "image-rendering: pixelated" in made.source


def test_all_pictures_are_there_even_if_the_main_table_shows_some(page):
    made = page(audit(defence("d", leak(20.0, pictures=[picture(20.0)] * 15), held(pictures=[picture(9.0)]))))
    assert rows(made)[0].count("<img") == 20
    assert "10 of 15 pictures" in made.text
    assert details(made)[0].count("<img") == 2 * (15 + 1)


def test_every_goal_has_a_verdict(page):
    made = page(audit(defence("d", leak(), inapplicable(goal="steps"), PROPERTY, MEMBERS), defence("e")))
    first, second = rows(made)
    assert chips(first) == ["leaks", "not applicable", "nothing found", "no power"]
    assert second.count("not tried") == 4


def test_details_group_findings_by_role_and_give_intervals_chance_and_reasons(page):
    found = [leak(), PROPERTY, held(8.5, attack="other"), inapplicable(role="secure server")]
    (part,) = details(page(audit(defence("d", *found, config="[algorithm]\nrate = 0.125\n"))))
    assert re.findall(r'scope="rowgroup" colspan="7">([^<]+)<', part) == ["server", "colluders", "secure server"]
    assert part.index(">other<") < part.index(">colluders<")
    assert "PSNR 31.2 dB<small>29.2 to 33.2 dB</small>" in part
    assert "AUC 0.531<small>0.460 to 0.600</small>" in part
    assert "SSIM 0.931, labels found 100%, recognised 91.7%, originals recognised 100%." in part
    assert "12<small>1 example each</small>" in part
    assert "Replies are masked. Attack the opened sums instead." in part
    assert "rate = 0.125" in part


@pytest.mark.parametrize("finding", [powerless(), inapplicable()])
def test_an_attack_without_power_never_counts_as_held(page, finding):
    record = audit(defence("plain", leak()), private("unknown", finding))
    said = " ".join(headline(record))
    assert "in 1 of 2 ways to train: plain. Nothing can be said of unknown" in said
    assert "Attacks found leaks in 1 of 1 without calibrated noise; 1 more cannot be judged." in said
    assert chips(rows(page(record))[1]) == [finding.verdict]


def test_an_audit_in_which_no_attack_had_power_says_that_it_says_nothing():
    said = " ".join(headline(audit(defence("a", powerless()), defence("b", MEMBERS))))
    assert "No attack recovered training examples in any of 2 ways to train, which is no proof." in said
    assert "No attack had power, so none of them can be judged." in said


def test_the_headline_counts_leaks_with_and_without_noise_and_names_the_smallest_reply_that_leaks(page):
    made = page(audit())
    assert "An attack recovered training examples in 3 of 5 ways to train: undefended, sketch-tenth, secure sums." in made.text
    assert "Attacks found leaks in 4 of 4 without calibrated noise and in 0 of 1 with calibrated noise." in made.text
    assert (
        "Sketching alone is not privacy: a reply of sketch-tenth is 897 numbers for 8,970 parameters, and it leaks."
        in made.text
    )


def test_sketching_is_not_called_privacy_where_nothing_was_found_either():
    assert headline(audit(defence("sketch", held())))[-1].startswith("Sketching alone is not privacy, whatever was found here")


def test_nothing_is_called_safe_or_private_because_an_attack_failed(page):
    made = page(audit(defence("d", held(), PROPERTY), defence("e", held())))
    assert not re.search(r"\b(safe|safely|private|protected|guaranteed?)\b", made.text, re.IGNORECASE)
    assert "is no proof" in made.text


def test_the_page_says_who_sees_what_and_what_claims_are_not(page):
    text = page(audit()).text
    for said in (
        *("Honest but curious", "where there is no TLS", "its own data", "the opened sums", "subtract their own part"),
        *("a bound on any attack", "Attacks only give lower bounds", "failed on the undefended model too"),
        *("Sketching is compression, not privacy", "not from being inferred", "not what the sum tells"),
        *("worst case by design", "not a defence either", "mean image of public data", "nearest-neighbour classifier"),
    ):
        assert said in text


def test_an_interrupted_audit_says_so_before_anything_else(page):
    made = page(audit(finished=False))
    assert made.source.index("This audit was interrupted") < made.source.index('class="headline"')
    assert "interrupted" not in page(audit()).text


def test_an_audit_that_has_not_come_to_a_defence_is_a_page_too(page):
    made = page(audit(defences=[], finished=False))
    assert "No defence has been audited yet." in made.text
    assert rows(made) == []


def test_versions_and_how_to_run_again_are_there(page):
    text = page(audit(seed=41, version="9.8.7")).text
    assert "Audited by sketchfed 9.8.7 with seed 41." in text
    assert "sketchfed audit --seed 41" in text
    assert re.search(r"Written by sketchfed \S+, Python 3\.\S+, torch", text)


def test_scores_that_are_not_finite_or_not_known_by_name_are_shown(page):
    text = page(audit(defence("d", leak(details={"epsilon_lower": float("inf"), "of_my_own": -0.5})))).text
    assert "privacy loss at least inf, of my own -0.500." in text


def test_equal_records_give_equal_files(page):
    assert page(audit()).source == page(audit()).source


def test_a_page_can_be_read_without_seeing_it(page):
    made = page(audit())
    assert ("html", {"lang": "en"}) in made.tags
    assert [tag for tag, _ in made.tags if tag in ("h1", "h2", "h3")] == ["h1", *["h2"] * 5]
    assert all(given.get("alt") for given in made.images)
    assert all("scope" in given for tag, given in made.tags if tag == "th")
    assert all({"aria-labelledby", "aria-label"} & set(given) for _, given in made.tags if given.get("role") == "region")
    ids = [given["id"] for _, given in made.tags if "id" in given]
    linked = [given["href"][1:] for tag, given in made.tags if tag == "a"] + [
        g["headers"] for _, g in made.tags if "headers" in g
    ]
    assert set(linked) <= set(ids)
    assert len(ids) == len(set(ids))
