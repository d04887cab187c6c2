"""The page of `holmes report` in a real browser: sorting, filtering, zooming, links, and no part of it clipped."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import holmes_hpc
from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from tests.browser import Browser, find_browser
from tests.run_folders import make_plan, make_run, metric

DONE = {"status": "completed", "steps": 8, "final_loss": 2.0, "error": None, "emulated": True}
SPEEDS = {"a": 0.5, "b": 0.1, "c": 0.25}
WIDE = "x" * 90


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser of Chromium's family is installed (Debian's package chromium)")
    found = Browser(program)
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for name, seconds in SPEEDS.items():
        run = make_run(folder, name, metrics=[metric(step, seconds) for step in range(1, 9)], result=DONE,
                       plan=make_plan("megatron" if name == "b" else "holmes"), timeline_steps=[8])
        config = compose(["+cluster=mixed", *([f"train.resume={folder / 'mixed' / 'a'}"] if name == "c" else [])])
        (run / "config.yaml").write_text(OmegaConf.to_yaml(config))
    failed = make_run(folder, "d", result={**DONE, "status": "failed", "error": f"rank 3 died of {WIDE} {WIDE}"})
    (failed / "plan.json").unlink()
    assert cli.run(["report", str(folder)]) == 0
    return folder / "mixed" / "report.html"


def names(browser: Browser, table: int = 0) -> list[str]:
    """Return the runs whose rows are seen, in their order."""
    found: list[str] = browser.ask(f"""[...document.querySelectorAll(".together table")[{table}].tBodies[0].rows]
        .filter((row) => row.offsetHeight).map((row) => row.cells[0].textContent.split("/")[1])""")
    return found


def heading(title: str) -> str:
    """Return a selector of the heading of a column, the first of that name."""
    return f'[data-of="{title}"]'


def name_headings(browser: Browser) -> None:
    browser.ask("""document.querySelectorAll(".sort").forEach((each) => { each.dataset.of = each.textContent; })""")


def test_tables_sort_together_numbers_by_value_and_the_unknown_last(browser: Browser, page: Path) -> None:
    browser.open(page)
    name_headings(browser)
    assert names(browser) == ["a", "b", "c", "d"]
    browser.click(heading("tokens/s"))
    assert [names(browser, table) for table in range(3)] == [["b", "c", "a", "d"]] * 3
    browser.click(heading("tokens/s"))
    assert names(browser) == ["a", "c", "b", "d"]
    assert browser.ask('document.querySelectorAll("[aria-sort=ascending]").length') == 1
    browser.click(heading("strategy"))
    assert names(browser)[-1] == "b" and browser.said == []


def test_a_filter_hides_rows_of_all_tables_and_counts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(".filter input")
    browser.write("Completed HOLMES")
    assert [names(browser, table) for table in range(3)] == [["a", "c"]] * 3
    assert browser.ask('document.querySelector("output").textContent') == "2 of 4 runs"
    browser.ask('document.querySelector(".filter input").select()')
    browser.write("no such word")
    assert names(browser) == [] and browser.said == []


def test_a_picture_fills_the_window_grows_moves_and_closes(browser: Browser, page: Path) -> None:
    browser.open(page)
    for kind in ("img", "svg"):
        browser.click(f".zoom:has({kind})")
        assert browser.ask('document.querySelector("dialog").open')
        inside = """(() => { const p = document.querySelector(".stage > *").getBoundingClientRect();
            return p.x >= -1 && p.right <= innerWidth + 1 && p.bottom <= innerHeight + 1 &&
                (p.width > innerWidth * 0.9 || p.height > innerHeight * 0.85); })()"""
        assert browser.ask(inside), kind
        # On a screen whose scroll bars take room, as most have: the way out must not be under one.
        assert browser.ask("""[...document.querySelectorAll("dialog button")].every((each) =>
            each.getBoundingClientRect().right <= document.documentElement.clientWidth)""")
        browser.mouse("mouseWheel", 600, 450, deltaX=0, deltaY=-400)
        assert float(browser.ask('document.querySelector(".stage > *").dataset.scale')) > 2
        place = 'document.querySelector(".stage > *").getBoundingClientRect().x'
        before = browser.ask(place)
        browser.mouse("mousePressed", 600, 450, button="left", buttons=1)
        browser.mouse("mouseMoved", 640, 450, button="left", buttons=1)
        browser.mouse("mouseReleased", 640, 450, button="left")
        assert browser.ask(place) == pytest.approx(before + 40, abs=1)
        browser.key("0")
        assert browser.ask('document.querySelector(".stage > *").dataset.scale') == "1.000"
        browser.key("Escape")
        assert not browser.ask('document.querySelector("dialog").open')
    assert browser.said == []


def test_links_lead_to_runs_and_between_them(browser: Browser, page: Path) -> None:
    browser.open(page)
    broken = browser.ask("""[...document.querySelectorAll("a")].map((a) => a.getAttribute("href"))
        .filter((href) => !href.startsWith("#") || !document.getElementById(href.slice(1)))""")
    assert broken == []
    browser.click(".together tbody tr:nth-child(3) a")
    assert browser.ask("location.hash") == "#run-3"
    texts = browser.ask("""[...document.querySelectorAll("section dl")].map((each) => each.innerText)""")
    assert "is gone on with by\nmixed/c" in texts[0].replace("\t", "\n") and "mixed/c (holmes) 2.00x" in texts[0]
    assert "goes on from\nmixed/a" in texts[2] and "damaged\nplan.json is missing" in texts[3]


CLIPPED = """(() => {
  const wide = [];
  const room = document.documentElement.clientWidth;
  for (const each of document.querySelectorAll("body *")) {
    const box = each.getBoundingClientRect();
    const scrolls = each.closest(".wide, pre, figure, dialog, svg, details:not([open])");
    if (!scrolls && box.width && box.right > room + 1) wide.push(each.outerHTML.slice(0, 99));
  }
  return {wide, page: document.documentElement.scrollWidth - room};
})()"""


@pytest.mark.parametrize(("width", "mobile"), [(1200, False), (390, True)], ids=["screen", "phone"])
def test_nothing_is_clipped(width: int, mobile: bool, browser: Browser, page: Path) -> None:
    browser.open(page, width, 844, mobile=mobile)
    assert browser.ask(CLIPPED) == {"wide": [], "page": 0}
    texts = browser.ask("""[...document.querySelectorAll("svg text")].filter((text) => {
        const a = text.getBBox(), v = text.ownerSVGElement.viewBox.baseVal;
        return a.x < -1 || a.x + a.width > v.width + 1 || a.y < -1 || a.y + a.height > v.height + 1; })
        .map((text) => text.textContent)""")
    assert texts == [] and browser.said == []


def test_a_print_holds_all_columns(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.size(703, 1000)  # A4 less its margins, in pixels of CSS
    try:
        over = browser.ask("""[...document.querySelectorAll("table, pre, img, svg")].filter((each) =>
            each.getBoundingClientRect().right > 704 || each.scrollWidth > each.clientWidth + 1 && each.matches("pre"))
            .map((each) => each.outerHTML.slice(0, 200))""")
        assert over == []
        assert browser.printed().startswith(b"%PDF")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def test_a_page_fetches_nothing_and_runs_no_other_script(browser: Browser, page: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        foreign = (f"<img src='http://127.0.0.1:{server.getsockname()[1]}/x.png' onerror='document.title = 1'>"
                   "<script>document.title = 'other'</script>")
        (tmp_path / "page.html").write_text(page.read_text().replace("</body>", f"{foreign}</body>"))
        browser.open(tmp_path / "page.html")
        assert browser.ask("document.title").startswith("holmes_hpc: ")
        # The browser says what it refused.
        assert len([said for said in browser.said if "Content Security Policy" in said]) >= 2
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_plan_of_a_user_has_its_traffic_drawn(browser: Browser, tmp_path: Path) -> None:
    overrides = ["+cluster=mixed", "launch.mode=emulated", "parallel=holmes", "parallel.pipeline=2"]
    run = make_run(tmp_path, metrics=[metric(step) for step in range(1, 9)], result=DONE,
                   plan=holmes_hpc.plan(overrides))
    (run / "config.yaml").write_text(OmegaConf.to_yaml(compose(overrides)))
    assert cli.run(["report", str(run)]) == 0
    browser.open(run / "report.html")
    told = browser.ask("""[...document.querySelector("[aria-label^=traffic]").querySelectorAll("text")]
        .map((text) => text.textContent)""")
    assert {"ib (hdr200)", "roce (roce200)", "host0", "host3"} <= set(told)
    assert sum("Ethernet: " in text for text in told) == 1 and browser.said == []
