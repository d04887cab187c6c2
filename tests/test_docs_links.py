"""Links of the documentation lead to pages and headings that are there; the site has every page and every message."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from tests.runs_for_tests import ROOT
from tools import messages

DOCS = ROOT / "docs"
MADE = {"generated/messages", "generated/changelog"}
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
                *(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)])
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")


def prose(path: Path) -> str:
    """Return a page without its code."""
    return _CODE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Return the names of the headings of a page, as GitHub and Sphinx make them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    found = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
             for title in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE)]
    return {f"{name}-{number}" if number else name for place, name in enumerate(found)
            for number in [found[:place].count(name)]}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / unquote(name)).resolve() if name else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            wrong.append(link)
    assert wrong == []


def test_a_wrong_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One thing: `code`, *two*\n```\n# no heading\n```\n## One thing: code, two\n")
    assert anchors(tmp_path / "b.md") == {"one-thing-code-two", "one-thing-code-two-1"}
    assert _LINK.findall("[a](b.md#c) and [d](e_(f).md), ![g](h.png)") == ["b.md#c", "e_(f).md", "h.png"]


def test_the_index_has_every_page_once() -> None:
    text = (DOCS / "index.md").read_text()
    listed = [line for part in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL)
              for line in part.splitlines() if not line.startswith(":")]
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES if DOCS in path.parents} - {"index"}
    assert sorted(listed) == sorted(pages | MADE)
    linked = {link.partition("#")[0].removesuffix(".md") for link in _LINK.findall(text)}
    assert pages - linked == set(), "and links to it where no site is made"


def test_the_messages_of_our_errors_are_found_with_blanks_for_what_varies(tmp_path: Path) -> None:
    found = {each.text: each for each in messages.messages()}
    for text, error, module in (
            ("...: no such folder; name a run folder (runs/<name>/<id>) or a folder that holds runs",
             "ConfigurationError", "analysis.reading"),
            ("launch.dry_run=true: no run comes of it; use holmes_hpc.plan, or leave it out.", "ConfigurationError",
             "holmes_hpc.api")):
        assert (found[text].error, found[text].module) == (error, module)
    assert not {each.error for each in found.values()} & {"KeyError", "ValueError", "TypeError", "AttributeError"}


_SOURCE = '''
"""A module that has a docstring of many words."""
_REMEDY = "without its settings the run cannot go on"
class OurError(Exception):
    """An error with a docstring of many words."""
def _words(node, why):
    "Return the words of one."
    if why:
        return f"the node {node} was slow: {'its link is down or gone' if why == 1 else why}"
    return "nothing is known of " + node + " by now"
def check(node, problems):
    problems.append(f"{node}: no such node is in the plan")
    logger.warning("%s has no SHA-256, so only its sums are checked", node)
    parser.add_argument("--x", help="a node that is looked at now")
    run("link set dev lo up by now", re.compile("a pattern of many words"), "two words")
    raise OurError(_words(node, 1))
def refuse(node):
    raise OurError(f"{node} is none of the nodes here; {_REMEDY}")
'''


def test_messages_that_helpers_make_are_found_and_what_is_none_is_not(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "a.py").write_text(_SOURCE)
    monkeypatch.setattr(messages, "ROOT", tmp_path)
    monkeypatch.setattr(messages, "PACKAGES", ("ours",))
    assert {(each.text, each.error) for each in messages.messages()} == {
        ("without its settings the run cannot go on", ""), ("the node ... was slow: ...", ""),
        ("its link is down or gone", ""), ("nothing is known of ... by now", ""),
        ("...: no such node is in the plan", ""), ("... has no SHA-256, so only its sums are checked", ""),
        ("... is none of the nodes here; ...", "OurError")}


@pytest.mark.parametrize("text", [
    "the run did not end well; it said:\n...", "without its settings the run cannot go on, so start it anew",
    "ask for one component for each label, in the file's order", "all ranks were killed without a word; see ..."])
def test_messages_of_helpers_in_the_program_are_on_the_page(text: str) -> None:
    assert text in {each.text for each in messages.messages()}


def test_the_page_of_messages_shows_them_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "messages", lambda: [
        messages.Message("a_b=... <x>\nis *no* `y`", "SomeError", "holmes_hpc.data.text")] * 2)
    assert messages.page().endswith("## data\n\n- a\\_b=... \\<x\\> is \\*no\\* \\`y\\` (SomeError)\n")


def test_what_the_site_is_made_of_is_written_beside_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert source is not None and source.loader is not None
    conf = importlib.util.module_from_spec(source)
    source.loader.exec_module(conf)
    monkeypatch.setattr(conf, "HERE", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    connected: dict[str, object] = {}
    conf.setup(SimpleNamespace(connect=connected.__setitem__))
    connected["builder-inited"](None)  # type: ignore[operator]
    assert {f"generated/{path.stem}" for path in (tmp_path / "docs" / "generated").iterdir()} == MADE
