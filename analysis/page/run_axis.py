"""A run over the time of the clock: speed and loss, and what happened when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from analysis.columns import percent
from analysis.disturbed import spans
from analysis.page.svg import GRID, Drawing, across, legend, thinned, ticks
from analysis.pictures import BLUE, GREEN, ORANGE, PURPLE, VERMILION
from analysis.reading import Record, Run
from holmes_hpc.foreign import number

WIDTH, LEFT, RIGHT = 960.0, 70.0, 20.0
_MOST_POINTS = 240
_MARKS = {"validation": GREEN, "checkpoint": PURPLE, "straggler": VERMILION}
_DISTURBED = "#F3E3C3"
_PAUSE_TIMES = 10.0
"""A pause is an interval between steps so many times as long as the usual one, and longer than `_PAUSE_SECONDS`."""
_PAUSE_SECONDS = 20.0
_STAMP = re.compile(r"(\d{8}-\d{6})-[a-z0-9]{4}")


@dataclass(frozen=True)
class Course:
    """When the steps of a run ended, in seconds after its start, and which of them are marked."""

    began: datetime
    seconds: list[float]
    steps: list[Record]
    marks: list[tuple[str, float, int]]
    """What, when, and at which step."""
    pauses: list[tuple[float, float]]
    disturbed: list[tuple[float, float, str]]
    """From when to when the cluster was disturbed on purpose, and how."""


def course(run: Run) -> Course | None:
    """Return the course of a run; None where fewer than two of its steps say when they ended."""
    timed = [(when, record) for record in run.metrics if (when := _moment(record.get("time"))) is not None]
    if len(timed) < 2 or timed[-1][0] <= timed[0][0]:
        return None
    began = min(_start(run) or timed[0][0], timed[0][0])
    seconds = [(when - began).total_seconds() for when, _ in timed]
    steps = [record for _, record in timed]
    return Course(began, seconds, steps, _marks(run, seconds, steps), _pauses(seconds), _disturbed(seconds, steps))


def run_axis(found: Course, name: str) -> Drawing:
    """Return the drawing of a course: tokens per second above, the loss below, marks between them."""
    drawing = Drawing(WIDTH, 250, f"{name} over time")
    end = max(found.seconds) or 1.0
    unit, scale = next((unit, scale) for unit, scale in (("h", 3600.0), ("min", 60.0), ("s", 1.0))
                       if end >= 3 * scale or scale == 1.0)

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value * scale / end

    across(drawing, ticks(end / scale, 10), place, 20, 215, lambda value: f"{value:g}")
    drawing.write(WIDTH - RIGHT, 240, f"{unit} since {found.began:%Y-%m-%d %H:%M:%S} UTC", anchor="end")
    for begin, until in found.pauses:
        drawing.shape("rect", f"no step for {until - begin:.0f} s", x=place(begin / scale), y=20,
                      width=place(until / scale) - place(begin / scale), height=195, fill=GRID)
    places = [place(each / scale) for each in found.seconds]
    for begin, until, acting in found.disturbed:
        drawing.shape("rect", acting, x=place(begin / scale), y=20, width=place(until / scale) - place(begin / scale),
                      height=195, fill=_DISTURBED)
    _curve(drawing, found, places, "tokens_per_second", BLUE, (22, 100), "tokens/s")
    _curve(drawing, found, places, "loss", ORANGE, (132, 213), "loss")
    for what, when, step in found.marks:
        drawing.shape("circle", f"{what}, step {step}", cx=place(when / scale), cy=_height(what), r=3.5,
                      fill=_MARKS[what])
    used = [(colour, what) for what, colour in _MARKS.items() if any(mark[0] == what for mark in found.marks)]
    legend(drawing, LEFT, 240, [*used, *([(GRID, "no step for long")] if found.pauses else []),
                                *([(_DISTURBED, "disturbed on purpose")] if found.disturbed else [])])
    return drawing


def _height(what: str) -> float:
    return 108.0 + 7 * list(_MARKS).index(what)


def _curve(drawing: Drawing, found: Course, places: Sequence[float], name: str, colour: str,
           span: tuple[float, float], words: str) -> None:
    """Draw one figure of the steps between two heights, with its largest value on the left."""
    known = [(x, value) for x, record in zip(places, found.steps, strict=True)
             if (value := number(record.get(name))) is not None]
    high = max((value for _, value in known), default=0.0)
    top, bottom = span
    drawing.write(LEFT - 8, top + 12, words, anchor="end", colour=colour, bold=True)
    drawing.line([(LEFT, bottom), (WIDTH - RIGHT, bottom)], GRID, 1)
    drawing.write(LEFT - 8, bottom, "0", anchor="end")
    if high <= 0:
        return
    drawing.write(LEFT - 8, top, f"{high:,.0f}" if high >= 100 else f"{high:.2f}", anchor="end")
    points = [(x, bottom - (bottom - top) * max(value, 0.0) / high) for x, value in thinned(known, _MOST_POINTS)]
    drawing.line(points, colour)


def _marks(run: Run, seconds: Sequence[float], steps: Sequence[Record]) -> list[tuple[str, float, int]]:
    kept = _kept_steps(run)
    marks: list[tuple[str, float, int]] = []
    slow = False
    for when, record in zip(seconds, steps, strict=True):
        step = record["step"]
        if record.get("validation_loss") is not None and number(record["validation_loss"]) is not None:
            marks.append(("validation", when, step))
        if step in kept:
            marks.append(("checkpoint", when, step))
        # One mark where a rank becomes slow, not one for each step of it.
        now = bool(record.get("stragglers"))
        if now and not slow:
            marks.append(("straggler", when, step))
        slow = now
    return marks


def _disturbed(seconds: Sequence[float], steps: Sequence[Record]) -> list[tuple[float, float, str]]:
    """Return from when to when the same disturbed steps in a row."""
    ends = {record["step"]: (before, now)
            for record, before, now in zip(steps, [0.0, *seconds], seconds, strict=False)}
    return [(ends[first][0], ends[last][1], acting) for first, last, acting in spans(steps)]


def _kept_steps(run: Run) -> set[int]:
    try:
        names = [path.name for path in (run.folder / "checkpoints").iterdir()]
    except OSError:
        return set()
    return {int(name[5:]) for name in names if re.fullmatch(r"step-\d{1,18}", name)}


def _pauses(seconds: Sequence[float]) -> list[tuple[float, float]]:
    gaps = [after - before for before, after in pairwise(seconds)]
    long = max(_PAUSE_TIMES * median(gaps), _PAUSE_SECONDS)
    return [(before, after) for before, after in pairwise(seconds) if after - before > long]


def pauses_in_words(found: Course) -> str:
    """Return for how long a run made no step, and which part of its time that is; "" for none."""
    lost = sum(after - before for before, after in found.pauses)
    return f"{lost:.0f} s without a step ({percent(lost / max(found.seconds))})" if lost else ""


def _start(run: Run) -> datetime | None:
    """Return when a run was started, as its folder's name says."""
    match = _STAMP.fullmatch(run.folder.name)
    try:
        return datetime.strptime(match[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC) if match else None
    except ValueError:
        return None


def _moment(value: object) -> datetime | None:
    """Return the time that a record names, None for what is none."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the year 1 in another zone is before the first that there is
        return None
