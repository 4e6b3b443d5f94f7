(() => {
  "use strict";
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const PRINT_WIDTH = 660; // pixels that fit A4 and Letter between the margins
  const STEPS = [5, 10, 20, 40, 60, 80, 100]; // where the bars' axis may end
  let printing = false;

  const config = {
    displaylogo: false,
    modeBarButtons: [["toImage"]],
    toImageButtonOptions: { format: "svg", filename: "longtail" },
  };

  // A copy of a chart's description with each colour as the theme has it.
  const themed = (value, colors) => {
    if (typeof value === "string") return colors[value] ?? value;
    if (Array.isArray(value)) return value.map((item) => themed(item, colors));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, colors)]));
  };

  // The state lives in page.charts; drawing shows it, in any theme and width.
  const draw = (id) => {
    const element = document.getElementById(id);
    const onPaper = printing || paper.matches;
    const colors = dark.matches && !onPaper ? page.dark : {};
    const { data, layout } = page.charts[id];
    const half = element.closest(".pair") !== null;
    const width = onPaper ? PRINT_WIDTH * (half ? 0.48 : 1) : element.clientWidth;
    return Plotly.react(element, themed(data, colors), { ...themed(layout, colors), width }, config);
  };
  const drawAll = () => Promise.all(Object.keys(page.charts).map(draw));

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const trace of button.dataset.traces.split(" ")) {
        page.charts[button.dataset.chart].data[trace].visible = shown;
      }
      draw(button.dataset.chart);
    });
  }

  const startSlider = ({ taus, digits, unadjusted, methods }) => {
    const knob = document.getElementById("tau-knob");
    const presets = document.getElementById("presets");
    const bars = { "chart-slider-groups": "groups", "chart-slider-classes": "classes" };
    let method = methods[0];
    let waiting = false;

    const move = () => {
      const place = Number(knob.value);
      const tau = taus[place].toFixed(digits);
      for (const [id, key] of Object.entries(bars)) {
        const { data: [moving, without], layout } = page.charts[id];
        moving.y = method[key][place];
        moving.marker.color = method.color;
        without.y = method[key][unadjusted];
        // Steps, so that the axis stands still while the bars move a little.
        const highest = Math.max(...moving.y, ...without.y);
        layout.yaxis.range = [0, STEPS.find((step) => step >= highest) * 1.02];
      }
      const curve = page.charts["chart-tau"];
      if (curve) curve.layout.shapes[0].x0 = curve.layout.shapes[0].x1 = taus[place];
      document.getElementById("tau-value").textContent = tau;
      document.getElementById("tau-says").textContent = method.says[place];
      knob.setAttribute("aria-valuetext", `τ = ${tau}`);
      for (const button of presets.children) {
        button.setAttribute("aria-pressed", String(Number(button.value) === place));
      }
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        [...Object.keys(bars), ...(curve ? ["chart-tau"] : [])].forEach(draw);
      });
    };

    const choose = (index) => {
      method = methods[index];
      presets.replaceChildren(
        ...method.presets.map(([name, place]) => {
          const button = document.createElement("button");
          button.type = "button";
          button.value = place;
          button.textContent = `${name}: ${taus[place].toFixed(digits)}`;
          button.addEventListener("click", () => {
            knob.value = place;
            move();
          });
          return button;
        }),
      );
      move();
    };

    knob.addEventListener("input", move);
    for (const radio of document.querySelectorAll('input[name="method"]')) {
      radio.addEventListener("change", () => choose(Number(radio.value)));
    }
    choose(Number(document.querySelector('input[name="method"]:checked')?.value ?? 0));
  };

  dark.addEventListener("change", drawAll);
  paper.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { printing = true; drawAll(); });
  addEventListener("afterprint", () => { printing = false; drawAll(); });

  let width = document.documentElement.clientWidth;
  new ResizeObserver(() => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    drawAll();
  }).observe(document.documentElement);

  if (page.slider) startSlider(page.slider);
  drawAll().then(() => { document.documentElement.dataset.ready = "true"; });
})();
