"""The pages in headless Chromium: quiet, live, narrow, dark, printable."""

import shutil

import pytest

from longtail.report import pages
from page_factory import adjusted_predictions, digits_comparison

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page's tests need playwright: pip install playwright"
)

pytestmark = pytest.mark.browser

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("the page's tests need chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = pages.runs_page(digits_comparison()).write(folder / "runs.html")
    adjusted = pages.adjusted_page(adjusted_predictions(), command="longtail")
    return {"runs": runs, "adjusted": adjusted.write(folder / "adjusted.html")}


class View:
    """An opened page, with everything it said and asked for."""

    def __init__(self, browser, file, **options):
        self.said, self.asked = [], []
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready]", state="attached")

    def settle(self):
        self.page.evaluate("new Promise((r) => requestAnimationFrame(() => setTimeout(r, 50)))")

    def drawn(self, chart):
        return self.page.evaluate(f"document.getElementById('{chart}').data[0].y")

    def overflow(self):
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.fixture(scope="module")
def desktop(browser, files):
    view = View(browser, files["runs"])
    yield view
    view.context.close()


@pytest.mark.parametrize("name", ["runs", "adjusted"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_it_opens_quietly_draws_every_chart_and_fits(browser, files, name, size):
    view = View(browser, files[name], viewport=size)
    assert view.said == []
    assert [url for url in view.asked if not url.startswith(("data:", "blob:"))] == [
        files[name].as_uri()
    ]
    for details in view.page.locator("summary").all():
        details.click()
    assert view.overflow() <= 0
    cut = view.page.evaluate(
        """() => [...document.querySelectorAll('.chart')].flatMap((chart) => {
          const box = chart.getBoundingClientRect();
          if (!chart.querySelector('.points path, .lines path, .js-line')) return [chart.id];
          return [...chart.querySelectorAll('.main-svg text')].filter((text) => {
            const b = text.getBoundingClientRect();
            return b.width > 0 && (b.left < box.left - 1 || b.right > box.right + 1);
          }).map((text) => chart.id + ': ' + text.textContent);
        })"""
    )
    assert cut == []
    view.context.close()


@pytest.mark.parametrize("method", [0, 1])
@pytest.mark.parametrize("place", [0, 33, 80])
def test_the_slider_moves_the_bars_to_pythons_values(desktop, method, place):
    slider = pages.runs_page(digits_comparison()).slider
    expected = slider["methods"][method]
    desktop.page.locator(f"input[name=method][value='{method}']").check()
    desktop.page.locator("#tau-knob").fill(str(place))
    desktop.settle()
    assert desktop.drawn("chart-slider-classes") == expected["classes"][place]
    assert desktop.drawn("chart-slider-groups") == expected["groups"][place]
    tau = slider["taus"][place]
    assert desktop.page.locator("#tau-value").inner_text() == f"{tau:.3g}"
    first, *_ = expected["groups"][place]
    said = desktop.page.locator("#tau-says").inner_text()
    assert said.startswith(f"Balanced error {first:.1f}%: many ")
    line = desktop.page.evaluate("document.getElementById('chart-tau').layout.shapes[0].x0")
    assert line == tau


def test_keyboard_and_buttons_move_the_slider_and_the_legend(desktop):
    knob = desktop.page.locator("#tau-knob")
    knob.fill("20")
    desktop.settle()
    knob.focus()
    before = desktop.page.locator("#tau-value").inner_text()
    desktop.page.keyboard.press("ArrowRight")
    desktop.settle()
    assert float(desktop.page.locator("#tau-value").inner_text()) > float(before)
    desktop.page.get_by_role("button", name="no adjustment: 0").click()
    assert desktop.page.locator("#tau-value").inner_text() == "0"
    button = desktop.page.locator("figure:has(#chart-per-class) .legend button").nth(1)
    shown = "document.getElementById('chart-per-class').data[1].visible"
    for visible in (False, True):
        button.press("Enter")
        assert button.get_attribute("aria-pressed") == str(visible).lower()
        assert desktop.page.evaluate(shown) is visible
