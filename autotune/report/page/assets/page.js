"use strict";
(async () => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = [];

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function theme() {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
    return dark ? "dark" : "default";
  }

  // A value of a whisker: row, low end, high end, which of how many bars of the row, text at the high end.
  function whisker(params, api) {
    const low = api.coord([api.value(1), api.value(0)]);
    const high = api.coord([api.value(2), api.value(0)]);
    const bars = api.barLayout({ barGap: "15%", barCategoryGap: "30%", barMaxWidth: 16, count: api.value(4) });
    const y = low[1] + bars[api.value(3)].offsetCenter;
    const half = Math.min(4, bars[0].width / 3);
    const colour = theme() === "dark" ? "#e4e8ee" : "#1b2430";
    const style = { stroke: colour, lineWidth: 1.3 };
    const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
    const text = api.ordinalRawValue(5);
    const x = Math.max(high[0], api.coord([0, api.value(0)])[0]) + 6;
    const ends = [line(low[0], y - half, low[0], y + half), line(high[0], y - half, high[0], y + half)];
    return {
      type: "group",
      children: [
        ...(high[0] - low[0] > 1 ? [line(low[0], y, high[0], y), ...ends] : []),
        { type: "text", style: { text, x, y, fill: colour, fontSize: 11, verticalAlign: "middle" } },
      ],
    };
  }

  // A value of a span: row, begin, end.
  function span(params, api) {
    const begin = api.coord([api.value(1), api.value(0)]);
    const end = api.coord([api.value(2), api.value(0)]);
    const height = Math.max(1, api.size([0, 1])[1] * 0.85);
    const shape = { x: begin[0], y: begin[1] - height / 2, width: Math.max(0.6, end[0] - begin[0]), height };
    return { type: "rect", shape, style: { fill: api.visual("color") } };
  }

  // A value of an interval: place, low end, high end; from low to high, upright.
  function interval(params, api) {
    const [[x, low], [, high]] = [1, 2].map((end) => api.coord([api.value(0), api.value(end)]));
    const style = { stroke: api.visual("color"), lineWidth: 1.3 };
    return { type: "line", shape: { x1: x, y1: low, x2: x, y2: high }, style };
  }

  // Microseconds with the unit that suits them, as in the page's texts.
  function time(value) {
    const [size, unit] = Math.abs(value) < 1e3 ? [1, "µs"] : Math.abs(value) < 1e6 ? [1e3, "ms"] : [1e6, "s"];
    return `${+(value / size).toPrecision(4)} ${unit}`;
  }

  function withUnits(option) {
    for (const axis of [option.xAxis, option.yAxis, option.parallelAxis].flat()) {
      if (axis && axis.axisLabel && axis.axisLabel.formatter === "time") axis.axisLabel.formatter = time;
    }
    return option;
  }

  // Buttons that show one tab of a section's charts.
  function tabs() {
    for (const button of document.querySelectorAll(".tabs button")) {
      button.addEventListener("click", () => {
        const section = button.closest("section");
        for (const each of section.querySelectorAll("[data-tab]")) {
          const chosen = each.dataset.tab === button.dataset.tab;
          if (each.tagName === "BUTTON") each.setAttribute("aria-pressed", chosen);
          else each.hidden = !chosen;
        }
        for (const chart of drawn) if (chart.getDom().clientWidth) chart.resize();
      });
    }
  }

  // Below parallel axes: how many configs are kept, and the fastest of them.
  function tellSelection(chart, place) {
    const told = document.createElement("p");
    told.className = "selection";
    told.setAttribute("aria-live", "polite");
    place.after(told);
    chart.on("axisareaselected", () => {
      const series = chart.getModel().getSeriesByIndex(0);
      const kept = series.getRawIndicesByActiveState("active");
      const all = series.getData().count();
      const names = kept.map((index) => series.getData().getName(index));
      const best = names.length ? names[names.length - 1].split("\n").join(", ") : "";
      told.textContent = kept.length && kept.length < all ? `${kept.length} of ${all} configs; the fastest: ${best}` : "";
    });
  }

  function draw(options) {
    for (const place of document.querySelectorAll("[data-chart]")) {
      const chart = echarts.init(place, theme(), { renderer: "svg" });
      const option = withUnits(options[place.dataset.chart]);
      chart.setOption(option);
      drawn.push(chart);
      if (option.parallelAxis || (option.baseOption && option.baseOption.parallelAxis)) tellSelection(chart, place);
      new ResizeObserver(() => place.clientWidth && chart.resize()).observe(place);
    }
  }

  function retheme(name) {
    for (const chart of drawn) chart.setTheme(name || theme());
    for (const told of document.querySelectorAll(".selection")) told.textContent = ""; // a new theme lets go of axes
  }

  function copies() {
    for (const button of document.querySelectorAll("button.copy")) {
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.closest("div").querySelector("pre").textContent);
        button.textContent = "copied";
      });
    }
  }

  try {
    const [library, options] = await Promise.all([unpack("library"), unpack("options")]);
    const script = document.createElement("script");
    script.textContent = library;
    document.head.append(script);
    echarts.registerCustomSeries("whisker", whisker);
    echarts.registerCustomSeries("span", span);
    echarts.registerCustomSeries("interval", interval);
    root.classList.add("with-charts");
    draw(JSON.parse(options));
    for (const fold of document.querySelectorAll("details:not(.keep)")) fold.open = false;
    copies();
    tabs();
    prefersDark.addEventListener("change", () => retheme());
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      retheme();
    });
    addEventListener("beforeprint", () => {
      retheme("default");
      for (const fold of document.querySelectorAll("details.copies")) fold.open = true;
      for (const chart of drawn) chart.resize({ width: Math.min(chart.getWidth(), 620) });
    });
    addEventListener("afterprint", () => {
      retheme();
      for (const chart of drawn) chart.resize({ width: "auto" });
    });
    root.dataset.ready = "yes";
  } catch (error) {
    root.classList.remove("with-charts");
    const trouble = document.getElementById("trouble");
    trouble.textContent = `The charts could not be drawn (${error}); the tables say everything.`;
    trouble.hidden = false;
    throw error;
  }
})();
