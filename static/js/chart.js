// Stacked bars over time, drawn by uPlot from the JSON that data-chart names. Colours are read from the design tokens.
(() => {
  "use strict";
  const locale = document.documentElement.lang === "en" ? "en-GB" : document.documentElement.lang;
  const number = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
  const exact = new Intl.NumberFormat(locale);
  const money = (currency, digits) =>
    new Intl.NumberFormat(locale, { style: "currency", currency, currencyDisplay: "narrowSymbol", maximumFractionDigits: digits });

  const token = (name) => {
    // light-dark() is resolved by the browser only where a colour is used.
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };

  const label = (key, by) => {
    const date = new Date(by === "hour" ? key : `${key}T00:00`);
    return by === "hour"
      ? date.toLocaleTimeString(locale, { hour: "2-digit", minute: "2-digit" })
      : date.toLocaleDateString(locale, { day: "numeric", month: "short" });
  };

  const draw = (card, data) => {
    const box = card.querySelector("[data-plot]");
    const legend = card.querySelector("[data-legend]");
    box.replaceChildren();
    legend.replaceChildren();
    const sum = data.series.flatMap((series) => series.values).reduce((a, b) => a + b, 0);
    if (!sum) {
      const empty = document.createElement("p");
      empty.className = "chart-empty";
      empty.textContent = gettext("Nothing yet in this period. The first call fills this chart.");
      box.append(empty);
      return;
    }
    const print = (value) =>
      data.metric === "spend" ? money(data.currency, value < 1 ? 6 : 2).format(value) : exact.format(value);
    const short = (value) =>
      data.metric === "spend" ? money(data.currency, value && value < 1 ? 4 : 2).format(value) : number.format(value);

    // Each series is drawn from zero to the sum of itself and those below: the highest first, so the others show.
    const sums = [];
    data.series.forEach((series, index) =>
      sums.push(series.values.map((value, at) => value + (index ? sums[index - 1][at] : 0))),
    );
    const colours = data.series.map((_, index) => token(`series-${index + 1}`));
    const bars = uPlot.paths.bars({ size: [0.7, 42], radius: 0.12 });
    const top = Math.max(...sums.at(-1));
    const tip = document.createElement("div");
    tip.className = "chart-tip";
    tip.hidden = true;

    new uPlot(
      {
        width: box.clientWidth,
        height: box.clientHeight,
        padding: [12, 4, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { setScale: false, x: false } },
        scales: { x: { time: false, range: [-0.5, data.keys.length - 0.5] }, y: { range: [0, top * 1.08] } },
        axes: [
          {
            stroke: token("text-3"),
            font: "11px Inter, sans-serif",
            grid: { show: false },
            ticks: { show: false },
            size: 28,
            space: 56,
            incrs: [1, 2, 3, 4, 5, 7, 10, 14, 15, 30],
            values: (_, splits) =>
              splits.map((at) => (Number.isInteger(at) && data.keys[at] ? label(data.keys[at], data.by) : "")),
          },
          {
            stroke: token("text-3"),
            font: "11px Inter, sans-serif",
            grid: { stroke: token("line"), width: 1 },
            ticks: { show: false },
            size: data.metric === "spend" ? 64 : 48,
            values: (_, splits) => splits.map(short),
          },
        ],
        series: [
          {},
          ...sums
            .map((_, index) => ({ fill: colours[index], stroke: colours[index], width: 0, paths: bars, points: { show: false } }))
            .reverse(),
        ],
        hooks: {
          setCursor: [
            (plot) => {
              const at = plot.cursor.idx;
              tip.hidden = at == null;
              if (at == null) return;
              const lines = data.series.map((series) => `${series.label}: ${print(series.values[at])}`);
              tip.textContent = [label(data.keys[at], data.by), ...lines].join("\n");
              const left = plot.valToPos(at, "x") + plot.over.offsetLeft;
              tip.style.left = `${Math.max(0, Math.min(left - tip.offsetWidth / 2, box.clientWidth - tip.offsetWidth))}px`;
            },
          ],
        },
      },
      [data.keys.map((_, at) => at), ...[...sums].reverse()],
      box,
    );
    box.append(tip);
    for (const [index, series] of data.series.entries()) {
      const item = document.createElement("span");
      const swatch = document.createElement("span");
      swatch.className = `swatch swatch-${index + 1}`;
      item.append(swatch, `${series.label}: ${print(series.values.reduce((a, b) => a + b, 0))}`);
      legend.append(item);
    }
  };

  for (const card of document.querySelectorAll("[data-chart]")) {
    let data;
    let metric = "tokens";
    const load = async () => {
      const address = new URL(card.dataset.chart, location.href);
      address.searchParams.set("metric", metric);
      const answer = await fetch(address, { headers: { Accept: "application/json" } });
      if (!answer.ok) {
        card.querySelector("[data-plot]").textContent = gettext("The chart could not be loaded. Reload the page to try again.");
        return;
      }
      data = await answer.json();
      draw(card, data);
    };
    card.addEventListener("click", (event) => {
      const button = event.target.closest("[data-metric]");
      if (!button) return;
      metric = button.dataset.metric;
      for (const other of card.querySelectorAll("[data-metric]")) other.setAttribute("aria-pressed", String(other === button));
      load();
    });
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (data && Math.abs(entry.contentRect.width - width) > 4) draw(card, data);
      width = entry.contentRect.width;
    }).observe(card);
    document.addEventListener("theme", () => data && draw(card, data));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw(card, data));
    load();
  }
})();
