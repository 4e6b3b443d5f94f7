"""The page in headless Chromium: quiet, closed to the network, live, narrow, dark, printable."""

import re
import shutil

import numpy as np
import pytest

from longtail.report import arrange, page
from longtail.report.compare import compare
from page_factory import digits_runs

pytest.importorskip("plotly")
pytest.importorskip("jinja2")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page's tests need playwright: pip install playwright"
)

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("the page's tests need chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def compared():
    return compare(digits_runs())


@pytest.fixture(scope="module")
def file(compared, tmp_path_factory):
    return page.write(compared, tmp_path_factory.mktemp("page") / "report.html")


class View:
    """An opened page, with everything it said and asked for."""

    def __init__(self, browser, file, **options):
        self.said, self.asked = [], []
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append((message.type, message.text)))
        self.page.on("pageerror", lambda error: self.said.append(("error", str(error))))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready=true]", state="attached")

    def settle(self):
        """Wait until what was changed is drawn."""
        self.page.evaluate(
            "() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )

    def bars(self, chart):
        return self.page.evaluate(f"document.getElementById('{chart}').data[0].y")

    def slide(self, place):
        self.page.locator("#tau-knob").fill(str(place))
        self.settle()

    def overflow(self):
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.fixture(scope="module")
def desktop(browser, file):
    view = View(browser, file)
    yield view
    view.context.close()


@pytest.fixture(scope="module")
def phone(browser, file):
    view = View(browser, file, viewport=PHONE, is_mobile=True, has_touch=True)
    yield view
    view.context.close()


def test_it_opens_quietly_and_asks_for_nothing(desktop, file):
    assert desktop.said == []
    outside = [url for url in desktop.asked if not url.startswith(("data:", "blob:"))]
    assert outside == [file.as_uri()]


def test_every_chart_is_drawn(desktop):
    drawn = desktop.page.evaluate(
        "[...document.querySelectorAll('.chart')].map((c) => [c.id, c.querySelectorAll("
        "'.main-svg .points path, .main-svg .lines path, .main-svg .js-line').length])"
    )
    assert len(drawn) == 9
    assert all(count > 0 for _, count in drawn), drawn
    assert desktop.overflow() <= 0


@pytest.mark.parametrize("method", [0, 1])
@pytest.mark.parametrize("place", [0, 7, 20, 33, 80])
def test_the_slider_moves_the_bars_to_pythons_values(desktop, compared, method, place):
    slider = arrange.tau_slider(compared)
    expected = slider.methods[method]
    desktop.page.locator(f"input[name=method][value='{method}']").check()
    desktop.slide(place)
    classes, groups = desktop.bars("chart-slider-classes"), desktop.bars("chart-slider-groups")
    assert classes == [round(value, 3) for value in expected.per_class[place].tolist()]
    assert groups[0] == round(float(expected.balanced[place]), 3)
    assert groups[1:] == [round(value, 3) for value in expected.groups[place].tolist()]
    tau = slider.taus[place]
    assert desktop.page.locator("#tau-value").inner_text() == f"{tau:.2f}"
    said = desktop.page.locator("#tau-says").inner_text()
    many, medium, few = expected.groups[place]
    assert said == (
        f"Balanced error {expected.balanced[place]:.1f}%: many {many:.1f}%, "
        f"medium {medium:.1f}%, few {few:.1f}%."
    )
    line = desktop.page.evaluate("document.getElementById('chart-tau').layout.shapes[0].x0")
    assert line == pytest.approx(tau, abs=0.0005 + 1e-9)  # as rounded for the page


def test_the_bars_on_the_screen_are_as_high_as_their_values(desktop, compared):
    desktop.page.locator("input[name=method][value='0']").check()
    desktop.slide(20)
    boxes = desktop.page.evaluate(
        "[...document.querySelectorAll('#chart-slider-groups .trace.bars')[0]"
        ".querySelectorAll('.point path')].map((p) => p.getBBox().height)"
    )
    values = desktop.bars("chart-slider-groups")
    assert len(boxes) == len(values) == 4
    np.testing.assert_allclose(
        np.array(boxes) / max(boxes), np.array(values) / max(values), atol=0.01
    )


def test_keyboard_and_buttons_move_the_slider(desktop, compared):
    following = f"{arrange.tau_slider(compared).taus[21]:.2f}"
    knob = desktop.page.locator("#tau-knob")
    desktop.slide(20)
    knob.focus()
    desktop.page.keyboard.press("ArrowRight")
    desktop.settle()
    assert desktop.page.locator("#tau-value").inner_text() == following
    assert knob.get_attribute("aria-valuetext") == f"τ = {following}"
    desktop.page.get_by_role("button", name="no adjustment: 0.00").click()
    assert desktop.page.locator("#tau-value").inner_text() == "0.00"
    outline = desktop.page.evaluate("document.getElementById('chart-slider-groups').data[1].y")
    desktop.settle()
    assert desktop.bars("chart-slider-groups") == outline


def test_the_legend_shows_and_hides(desktop):
    button = desktop.page.locator("button[data-chart=chart-classes]").nth(1)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    shown = "document.getElementById('chart-classes').data[1].visible"
    assert desktop.page.evaluate(shown) is False
    button.press("Enter")
    assert desktop.page.evaluate(shown) is True


def test_everything_that_acts_can_be_reached_by_tab_and_shows_it(desktop):
    # Tab goes on from the last click, which another test may have made: begin at the top.
    desktop.page.evaluate(
        "document.body.tabIndex = -1; document.body.focus();"
        "document.body.removeAttribute('tabindex'); scrollTo(0, 0)"
    )
    order = []
    for _ in range(60):
        desktop.page.keyboard.press("Tab")
        order.append(
            desktop.page.evaluate(
                "[document.activeElement.id || document.activeElement.textContent.trim(),"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    names = [name for name, _ in order]
    assert "tau-knob" in names
    assert names.index("Results") < names.index("tau-knob")
    assert {outline for name, outline in order if name in ("tau-knob", "Results")} == {"solid"}


def test_nothing_overflows_a_phone(phone):
    assert phone.said == []
    assert phone.overflow() <= 0
    for details in phone.page.locator("summary").all():
        details.click()
    phone.settle()
    assert phone.overflow() <= 0
    table = phone.page.locator(".scroll:has(table)").first
    inner, outer = table.evaluate("(e) => [e.scrollWidth, e.clientWidth]")
    assert inner > outer  # the wide table scrolls inside its own box
    widths = phone.page.evaluate(
        "[...document.querySelectorAll('.chart .main-svg')].map((s) => s.clientWidth)"
    )
    assert max(widths) <= 390


def test_text_on_a_phone_is_not_cut_off(phone):
    cut = phone.page.evaluate(
        """() => [...document.querySelectorAll('.chart')].flatMap((chart) => {
          const box = chart.getBoundingClientRect();
          return [...chart.querySelectorAll('.main-svg text')].filter((text) => {
            const b = text.getBoundingClientRect();
            return b.width > 0 && (b.left < box.left - 1 || b.right > box.right + 1);
          }).map((text) => chart.id + ': ' + text.textContent);
        })"""
    )
    assert cut == []


def test_the_slider_stays_in_sight_above_the_bars(phone):
    phone.page.evaluate("document.getElementById('chart-slider-classes').scrollIntoView()")
    phone.page.wait_for_timeout(700)  # scrolling is smooth
    box = phone.page.locator("#tau-knob").bounding_box()
    assert 0 <= box["y"] < 100


# WCAG's contrast ratio of every text on the page with what lies behind it, lowest first.
CONTRAST = """() => {
  const parse = (color) => {
    const numbers = color.match(/[\\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const linear = (v) => (v <= 10.3 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  for (const e of document.querySelectorAll('main *, footer *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest('.chart') || !e.checkVisibility()) continue;
    const what = `${e.tagName} ${e.textContent.slice(0, 40)}`;
    found.push([ratio(parse(getComputedStyle(e).color), behind(e)), what]);
  }
  for (const text of document.querySelectorAll('.chart .main-svg text')) {
    const paper = text.closest('.chart').querySelector('.main-svg').style.background;
    const color = parse(getComputedStyle(text).fill);
    const what = `chart ${text.textContent}`;
    if (text.textContent.trim()) found.push([ratio(color, parse(paper)), what]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_is_readable(desktop, scheme):
    desktop.page.emulate_media(color_scheme=scheme)
    desktop.settle()
    found = desktop.page.evaluate(CONTRAST)
    assert len(found) > 150
    assert any(what.startswith("chart") for _, what in found)
    assert found[0][0] >= 4.5, found[:5]
    body = desktop.page.evaluate("getComputedStyle(document.body).backgroundColor")
    papers = desktop.page.evaluate(
        "[...document.querySelectorAll('.chart')].map((chart) =>"
        " chart.querySelector('.main-svg').style.background)"
    )
    assert set(papers) == {body}
    assert (sum(map(int, re.findall(r"\d+", body))) < 100) == (scheme == "dark")
    desktop.page.emulate_media(color_scheme="light")
    desktop.settle()


def test_the_dark_page_prints_light_and_whole(browser, file, tmp_path):
    view = View(browser, file, color_scheme="dark")
    view.page.emulate_media(media="print", color_scheme="dark")
    view.settle()
    assert not view.page.locator("#tau-knob").is_visible()
    assert not view.page.locator("nav").is_visible()
    assert view.page.locator("#tau-says").is_visible()
    assert view.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    for chart in view.page.locator(".chart").all():
        assert chart.locator(".main-svg").first.is_visible()
        assert chart.locator(".main-svg").first.evaluate("(s) => s.clientWidth") <= 660
        paper = chart.locator(".main-svg").first.evaluate("(s) => s.style.background")
        assert paper == "rgb(255, 255, 255)"
    content = view.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 14
    view.page.emulate_media(media="screen", color_scheme="dark")
    view.settle()
    paper = view.page.locator(".chart .main-svg").first.evaluate("(s) => s.style.background")
    assert paper != "rgb(255, 255, 255)"
    assert view.said == []
    view.context.close()


def test_a_window_that_changes_takes_its_charts_along(browser, file):
    view = View(browser, file)
    view.page.set_viewport_size(PHONE)
    view.page.wait_for_function(
        "[...document.querySelectorAll('.main-svg')].every((s) => s.clientWidth <= 390)"
    )
    assert view.overflow() <= 0
    view.context.close()


def test_without_scripts_the_tables_remain(browser, file):
    view = View(browser, file, java_script_enabled=False)
    assert view.page.get_by_text("post-hoc logit adj. (oracle τ)").first.is_visible()
    assert view.page.get_by_text("The charts need JavaScript").is_visible()
    assert not view.page.locator("#tau-knob").is_visible()
    view.context.close()
