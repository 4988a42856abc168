"""The page in a real browser: no figure is empty or wider than its place, no label is cut, covered or tiny."""

import json
import re
import shutil
import subprocess

import pytest

import synthetic_figures
import synthetic_run
from compare.report import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here: the page cannot be laid out"),
]
SCHEMES = {"dark": 0, "light": 1}  # Blink's preferredColorScheme
MEASURE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach((d) => { d.open = true; });
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const data = (e) => e.closest("[clip-path]") && !(e.getAttribute("style") || "").includes("var(--rule)");
  const figures = [...document.querySelectorAll(".picture svg")].map((svg) => ({
    name: svg.getAttribute("aria-label"), box: box(svg), glance: !!svg.closest('[id$="-glance"]'),
    hidden: svg.parentElement.scrollWidth - svg.parentElement.clientWidth,
    marks: [...svg.querySelectorAll("use, path")].filter((e) => data(e) && e.getBoundingClientRect().height > 0).length,
    labels: [...svg.querySelectorAll("text")].map((t) => ({
      text: t.textContent, box: box(t), fill: getComputedStyle(t).fill,
      size: parseFloat(getComputedStyle(t).fontSize) * svg.getScreenCTM().a,
      turned: /rotate\\((?!-?0[ ,)])/.test(t.getAttribute("transform") || ""),
    })),
  }));
  const found = { figures, width: innerWidth, page: document.documentElement.scrollWidth,
                  sheet: getComputedStyle(document.querySelector("section")).backgroundColor };
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
# A window of a headless chromium is 500 px wide at least; a frame is as wide as it is told to be.
FRAME = """<!doctype html>
<meta name="color-scheme" content="light dark">
<script>
addEventListener("message", (event) => {
  const out = document.createElement("script");
  out.type = "application/json"; out.id = "measured"; out.textContent = event.data;
  document.body.append(out);
});
</script>
<body><iframe src="page.html" style="width: %dpx; height: 2000px; border: 0"></iframe></body>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One page with every kind of figure: a trace's, classes', the paper's, an untimed run's."""
    base = tmp_path_factory.mktemp("browser")
    folders = [synthetic_run.timed_run(base / "timed"), synthetic_run.absent_run(base / "absent", spills=3)]
    folders += [synthetic_figures.run(base / name, name) for name in ("fig6", "fig7", "fig8", "fig9")]
    out = report.page(folders, base / "page.html")
    out.write_text(out.read_text().replace("</body>", MEASURE + "</body>"))
    return out


def laid_out(page, width, scheme):
    """What the browser measured in a frame of that width."""
    frame = page.with_name(f"{width}.html")
    frame.write_text(FRAME % width)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=10000"]
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", f"--user-data-dir={page.parent}/profile"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=180, check=True)
    found = re.search(r'<script type="application/json" id="measured">(.*?)</script>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(found[1])


def luminance(colour):
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def cut(figure):
    left, top, right, bottom = figure["box"]
    return [
        label["text"]
        for label in figure["labels"]
        if label["box"][0] < left - 1 or label["box"][1] < top - 1
        or label["box"][2] > right + 1 or label["box"][3] > bottom + 1
    ]  # fmt: skip


def covered(figure):
    """Pairs of level labels whose boxes share more than a pixel each way; turned ones have boxes of more than ink."""
    level = [label for label in figure["labels"] if not label["turned"] and label["text"].strip()]
    pairs = [(a, b) for i, a in enumerate(level) for b in level[i + 1 :]]
    return [
        (a["text"], b["text"])
        for a, b in pairs
        if min(a["box"][2], b["box"][2]) - max(a["box"][0], b["box"][0]) > 1
        and min(a["box"][3], b["box"][3]) - max(a["box"][1], b["box"][1]) > 3
    ]


def scrolling(figures):
    """The pictures of a first screen that are wider than their place; further down a picture may scroll in its box."""
    return [figure["name"] for figure in figures if figure["glance"] and figure["hidden"] > 0]


LEAST_PX = 8.5  # of a letter on the screen


def small(figure):
    return [label["text"] for label in figure["labels"] if label["text"].strip() and label["size"] < LEAST_PX]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "light"), (400, "dark")])
def test_figures_are_whole_and_legible(page, width, scheme):
    found = laid_out(page, width, scheme)
    assert found["width"] == width and found["page"] <= width, "the page itself never scrolls sideways"
    assert len(found["figures"]) == page.read_text().count("<figure>") >= 20
    assert sum(figure["glance"] for figure in found["figures"]) == 6, "a picture for the first screen of each run"
    assert not scrolling(found["figures"])
    sheet = luminance(found["sheet"])
    assert (sheet < 0.1) == (scheme == "dark")
    for figure in found["figures"]:
        assert figure["marks"] > 0, f"{figure['name']} is empty"
        assert not cut(figure), figure["name"]
        assert not covered(figure), figure["name"]
        assert not small(figure), figure["name"]
        for label in figure["labels"]:
            light, dark = sorted((luminance(label["fill"]), sheet), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 4.5, (figure["name"], label["text"])


def test_a_cut_label_is_seen():
    """The test above can fail: one label beyond the right edge, one upon another."""
    inside, beyond, upon = [10, 10, 60, 25], [80, 10, 130, 25], [40, 12, 90, 27]
    labels = [{"text": str(at), "box": at, "turned": False} for at in (inside, beyond, upon)]
    figure = {"box": [0, 0, 100, 100], "labels": labels}
    assert cut(figure) == [str(beyond)]
    assert covered(figure) == [(str(inside), str(upon)), (str(beyond), str(upon))]


def test_a_first_picture_that_scrolls_and_a_letter_too_small_are_seen():
    label = {"text": "1.19", "size": LEAST_PX - 1}
    figure = {"name": "speed", "glance": True, "hidden": 137, "labels": [label]}
    assert scrolling([figure, figure | {"glance": False}, figure | {"hidden": 0}]) == ["speed"]
    assert small(figure) == ["1.19"]
