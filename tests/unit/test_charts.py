"""Pictures show what they were given, where they were told, and are well-formed."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooctrain.report.charts import (
    LEFT,
    RIGHT,
    Area,
    Curve,
    Piece,
    areas_svg,
    curves_svg,
    side_by_side_svg,
    stacked_svg,
    strips_svg,
)
from ooctrain.report.shapes import COLOURS, LETTER_WIDTH, WIDTH, round_ticks
from ooctrain.report.svg import LAYER, PHASES, timelines_svg, x_of
from ooctrain.sched.timeline import Timeline, TimelineEvent

SVG = "{http://www.w3.org/2000/svg}"
SPAN = WIDTH - LEFT - RIGHT


def boxes(svg, colour):
    """(x, width) of the boxes of one colour that carry a name."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    shown = [
        box for box in found if box.get("fill") == colour and box.find(f"{SVG}title") is not None
    ]
    return [(float(box.get("x")), float(box.get("width"))) for box in shown]


def test_a_piece_lies_where_it_was_put():
    svg = strips_svg("t", [("row", [Piece(2, 6, "half <&>", 1)])], extent=8)
    ((x, width),) = boxes(svg, COLOURS[1])
    assert x == pytest.approx(LEFT + SPAN / 4, abs=0.1)
    assert width == pytest.approx(SPAN / 2 - 1, abs=0.1)
    assert not boxes(svg, COLOURS[0])


def test_a_name_is_written_only_where_there_is_room():
    svg = strips_svg("t", [("row", [Piece(0, 1, "narrow"), Piece(1, 100, "wide")])], extent=100)
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "wide" in texts
    assert "narrow" not in texts


def lines(svg):
    """The points of each polyline."""
    found = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, p.split(","))) for p in points.split()] for points in found]


def test_a_gap_in_a_curve_stays_a_gap():
    points = [(1, 1), (2, 2), (3, None), (4, 4), (5, 5)]
    svg = curves_svg("t", [Curve("c", points)], axes=("x", "y"))
    assert [len(line) for line in lines(svg)] == [2, 2]


def test_equal_factors_are_equal_distances_where_the_axis_doubles():
    points = [(x, 1.0) for x in (1, 2, 4, 8)]
    svg = curves_svg("t", [Curve("c", points)], axes=("x", "y"), doubling=True)
    ((a, _), (b, _), (c, _), (d, _)) = lines(svg)[0]
    assert b - a == pytest.approx(c - b, abs=0.2)
    assert d - c == pytest.approx(c - b, abs=0.2)


def test_a_curve_keeps_its_colour_in_another_company():
    points = [(0, 1), (1, 1)]
    svg = curves_svg("t", [Curve("a", points), Curve("b", points, kind=3)], axes=("x", "y"))
    assert re.findall(r'<polyline[^>]* stroke="(#\w+)"', svg) == [COLOURS[0], COLOURS[3]]
    assert svg.index(f'fill="{COLOURS[3]}"') < svg.index(">b<")


def test_a_long_legend_goes_on_in_further_rows_and_names_as_many_colours():
    names = [f"a name of a curve, {n}" for n in range(9)]
    svg = curves_svg("t", [Curve(n, [(0, 1), (1, 2)]) for n in names], axes=("x", "y"))
    drawn = ElementTree.fromstring(svg)
    written = {text.text: text for text in drawn.iter(f"{SVG}text") if text.text in names}
    ends = [float(written[n].get("x")) + LETTER_WIDTH * len(n) for n in names]
    heights = [float(written[n].get("y")) for n in names]
    assert max(ends) <= WIDTH - RIGHT
    assert heights == sorted(heights)
    frame = next(box for box in drawn.iter(f"{SVG}rect") if box.get("fill") == "#fafafa")
    assert heights[-1] < float(frame.get("y")) - 12
    assert len(set(re.findall(r'<polyline[^>]* stroke="(#\w+)"', svg))) == len(names)


def radii(svg):
    """{curve: radii of its points}."""
    found = {}
    for circle in ElementTree.fromstring(svg).iter(f"{SVG}circle"):
        if circle.find(f"{SVG}title") is None:
            continue  # of the legend
        name = circle.find(f"{SVG}title").text.partition(":")[0]
        found.setdefault(name, []).append(float(circle.get("r")))
    return found


def test_a_point_that_others_cover_is_a_ring_around_them():
    curves = [
        Curve("below", [(0, 1), (1, 5), (2, None), (3, 2)], kind=0),
        Curve("middle", [(0, 1), (1, 5), (3, 9)], kind=0),
        Curve("bound", [(0, 1), (3, 2)], dashed=True),
        Curve("top", [(1, 5), (3, 9.001)], kind=0),
    ]
    found = radii(curves_svg("t", curves, axes=("x", "y")))
    seen, step = found["top"][0], found["middle"][1] - found["top"][0]
    assert step > 1
    assert found == {
        "below": [seen + step, seen + 2 * step, seen],
        "middle": [seen, seen + step, seen + step],
        "top": [seen, seen],
    }


def outline(element):
    """The form of an element without place, size and colour."""
    ends = [tuple(map(float, p.split(","))) for p in element.get("points", "").split()]
    if not ends:
        return element.tag, element.get("stroke-dasharray")
    x, y = (sum(column) / len(ends) for column in zip(*ends, strict=True))
    return tuple((round((a - x) / 4, 1), round((b - y) / 4, 1)) for a, b in ends)


@given(st.integers(1, 9), st.integers(0, 4))
def test_curves_can_be_told_apart_without_colours_and_the_legend_has_their_signs(many, dashed):
    """Of up to nine curves with points and four limits."""
    curves = [Curve(f"points {n}", [(0, 100 * n), (1, 100 * n)]) for n in range(many)]
    curves += [Curve(f"limit {n}", [(0, 0), (1, n)], dashed=True) for n in range(dashed)]
    drawn = ElementTree.fromstring(curves_svg("t", curves, axes=("x", "y")))
    marks = [e for e in drawn if e.tag in (f"{SVG}circle", f"{SVG}polygon")]
    plotted = [e for e in marks if e.find(f"{SVG}title") is not None]
    assert len(plotted) == 2 * many
    assert len({outline(mark) for mark in plotted}) == many
    assert [outline(e) for e in marks if e not in plotted] == [
        outline(e) for e in plotted[::2]
    ]  # in the legend, in the order of the curves
    lines = [e.get("stroke-dasharray") for e in drawn.iter(f"{SVG}polyline")]
    assert lines[:many] == [None] * many
    assert len(set(lines[many:])) == dashed
    signs = [e.get("stroke-dasharray") for e in drawn.iter(f"{SVG}line")]
    assert signs[: many + dashed] == lines


def test_more_is_higher():
    curves = [Curve("little", [(0, 1), (1, 1)]), Curve("much", [(0, 9), (1, 9)], dashed=True)]
    low, high = lines(curves_svg("t", curves, axes=("x", "y")))
    assert high[0][1] < low[0][1]


def middle_of(mark):
    """Of a circle, or of the corners of another mark."""
    if mark.tag == f"{SVG}circle":
        return float(mark.get("cx")), float(mark.get("cy"))
    xs, ys = zip(*(map(float, pair.split(",")) for pair in mark.get("points").split()), strict=True)
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2


def test_a_curves_label_stands_beside_its_last_point_and_inside_the_frame():
    """Below it, towards the middle; at the bottom to its right."""
    ends = {"left": (1.0, 8.0), "right": (9.0, 8.0), "lowest": (3.0, 0.0)}
    curves = [Curve(n, [(0, 9), end], label=f"label {n}") for n, end in ends.items()]
    drawn = ElementTree.fromstring(
        curves_svg("t", [Curve("all", [(0, 0), (10, 9)]), *curves], axes=("x", "y"))
    )
    spots = {}
    for mark in drawn.iter():
        title = mark.find(f"{SVG}title")
        if title is not None and mark.tag in (f"{SVG}circle", f"{SVG}polygon"):
            spots[title.text.partition(":")[0]] = middle_of(mark)
    words = {text.text: text for text in drawn.iter(f"{SVG}text")}
    found = {}
    for name in ends:
        word, (x, y) = words[f"label {name}"], spots[name]
        away = round(float(word.get("x")) - x), round(float(word.get("y")) - y)
        found[name] = word.get("text-anchor", "start"), *away
    places = {"left": ("start", 12, 18), "right": ("end", -8, 18), "lowest": ("start", 30, -4)}
    for name, (anchor, *away) in places.items():
        assert found[name][0] == anchor
        assert np.abs(np.subtract(found[name][1:], away)).max() <= 1  # a mark has no one middle


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low, span):
    ticks = round_ticks(low, low + span)
    assert 1 <= len(ticks) <= 10
    assert all(low - 1e-6 * span <= t <= low + span * (1 + 1e-6) for t in ticks)


def test_an_area_covers_what_it_was_given():
    svg = areas_svg("t", [Area(1, 3, 0, 5, "a", 2)], axes=("x", "y"), y_top=10)
    ((x, width),) = boxes(svg, COLOURS[2])
    assert x == pytest.approx(LEFT + SPAN / 3, abs=0.1)
    assert width == pytest.approx(2 * SPAN / 3, abs=0.1)


def test_a_stack_is_as_high_as_its_pictures_and_keeps_them():
    one = strips_svg("one", [("row", [Piece(0, 1, "a")])], extent=1)
    two = areas_svg("two", [Area(0, 1, 0, 1)], axes=("x", "y"), limits=[("most", 2)])
    heights = [int(re.search(r'height="(\d+)"', svg)[1]) for svg in (one, two)]
    stack = stacked_svg([one, two])
    root = ElementTree.fromstring(stack)
    assert int(root.get("height")) == sum(heights)
    assert [inner.get("y") for inner in root.findall(f"{SVG}svg")] == ["0", str(heights[0])]
    assert "most" in stack


def test_pictures_beside_each_other_are_as_wide_as_all_and_as_high_as_the_highest():
    one = strips_svg("one", [("row", [Piece(0, 1, "a")])], extent=1)
    two = areas_svg("two", [Area(0, 1, 0, 1)], axes=("x", "y"))
    root = ElementTree.fromstring(stacked_svg([side_by_side_svg([one, two]), one]))
    assert int(root.get("width")) == 2 * WIDTH
    row, last = root.findall(f"{SVG}svg")
    assert [inner.get("x") for inner in row.findall(f"{SVG}svg")] == ["0", str(WIDTH)]
    heights = [int(inner.get("height")) for inner in row.findall(f"{SVG}svg")]
    assert last.get("y") == row.get("height") == str(max(heights))


def texts(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_limit_is_a_dashed_line_at_its_height():
    svg = areas_svg("t", [Area(0, 1, 0, 10)], axes=("x", "y"), limits=[("half", 5)])
    drawn = ElementTree.fromstring(svg)
    (dashed,) = (line for line in drawn.iter(f"{SVG}line") if line.get("stroke-dasharray"))
    (area,) = (box for box in drawn.iter(f"{SVG}rect") if box.get("fill") == COLOURS[0])
    middle = float(area.get("y")) + float(area.get("height")) / 2
    assert float(dashed.get("y1")) == float(dashed.get("y2")) == pytest.approx(middle, abs=0.5)
    assert "half" in texts(svg)


def toy_timeline():
    """A forward call, its gradient, and the forward call once more: 30 us, at most 700 bytes."""
    events = tuple(
        TimelineEvent("C", name, start, start + 10, index)
        for index, (name, start) in enumerate([("f", 0), ("b", 10), ("f", 20)])
    )
    return Timeline(30, 700, 0, 0, 0, 30, 10, 0, events, ((0, 300), (10, 700)))


def test_a_timeline_tells_forward_from_backward_and_says_how():
    svg = timelines_svg({"t": toy_timeline()}, phases={"f": "forward", "b": "backward"})
    assert len(boxes(svg, PHASES["forward"])) == 2
    assert len(boxes(svg, PHASES["backward"])) == 1
    assert {"forward", "backward"} <= set(texts(svg))
    assert "update" not in texts(svg)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_each_layer_is_named_where_its_calls_run_and_its_name_fits(length):
    names = ["stem.fwd", "a.0.fwd", "a.1.fwd", "loss.fwd", "a.1.grad", "sgd.a.1", "a.0.grad", "b"]
    starts = [0, 10, 20, 30, 30 + length, 40 + length, 50 + length, 60 + length]
    ends = [*starts[1:], 70 + length]
    ends[6] -= 5  # the stream rests
    events = tuple(
        TimelineEvent("C", name, start, end, index)
        for index, (name, start, end) in enumerate(zip(names, starts, ends, strict=True))
    )
    line = Timeline(ends[-1], 700, 0, 0, 0, 30, 10, 0, events, ((0, 300), (10, 700)))
    svg = timelines_svg({"t": line}, phases={"loss.fwd": "loss", "sgd.a.1": "update"}, layers=True)
    root = ElementTree.fromstring(svg)
    layers = [box for box in root.iter(f"{SVG}rect") if box.get("fill") == LAYER]
    titles = [box.find(f"{SVG}title").text for box in layers]
    assert titles == ["stem", "a", "loss", "a", "b"]
    drawn = boxes(svg, LAYER)
    spans = [(0, 0), (1, 2), (3, 3), (4, 6), (7, 7)]  # first and last call of each
    places = [(x_of(starts[a], ends[-1]), x_of(ends[b], ends[-1]) - 1) for a, b in spans]
    assert drawn == [pytest.approx((x, end - x), abs=0.1) for x, end in places]
    lane = float(layers[0].get("y"))
    shown = [
        (text.text, float(text.get("x")))
        for text in root.iter(f"{SVG}text")
        if text.get("text-anchor") == "middle" and lane < float(text.get("y")) < lane + 20
    ]
    fits = [title for title in titles if title != "loss" or length == 40]
    assert [name for name, _ in shown] == fits
    for name, middle in shown:
        half = LETTER_WIDTH * len(name) / 2
        assert any(x <= middle - half and middle + half <= x + width for x, width in drawn)
    (dashed,) = (line for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray"))
    assert float(dashed.get("x1")) == pytest.approx(drawn[2][0], abs=0.1)


def test_a_timeline_names_no_layers_unless_it_is_told_to():
    assert not boxes(timelines_svg({"t": toy_timeline()}), LAYER)


def test_both_axes_of_a_timeline_have_numbers():
    shown = texts(timelines_svg({"t": toy_timeline()}))
    assert {"0", "5.0 us", "15 us", "30 us", "700 bytes"} <= set(shown)
