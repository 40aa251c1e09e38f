// Use over time, drawn by uPlot from the JSON that data-chart names: stacked bars, or lines for latencies.
(() => {
  "use strict";
  const { locale, short, token } = plotting;
  const exact = new Intl.NumberFormat(locale);
  const isLatency = (data) => data.metric === "ttft" || data.metric === "latency";
  const money = (currency, value, digits) =>
    new Intl.NumberFormat(locale, { style: "currency", currency, currencyDisplay: "narrowSymbol", maximumFractionDigits: digits }).format(value);

  const print = (data, value) => {
    if (value === null || value === undefined) return "–";
    if (isLatency(data)) return plotting.seconds(value / 1000);
    return data.metric === "spend" ? money(data.currency, value, value < 1 ? 6 : 2) : exact.format(value);
  };
  const printShort = (data, value) => {
    if (isLatency(data)) return plotting.seconds(value / 1000);
    return data.metric === "spend" ? money(data.currency, value, value && value < 1 ? 4 : 2) : short.format(value);
  };

  const OPTIONS = {
    hour: { hour: "2-digit", minute: "2-digit" },
    day: { day: "numeric", month: "short" },
    month: { month: "short", year: "numeric" },
  };
  const label = (data, at) => {
    const key = data.keys[at];
    const date = new Date(data.step === "hour" ? key : data.step === "day" ? `${key}T00:00` : `${key}-01T00:00`);
    const isLong = data.step === "hour" && data.keys.length > 26;
    return date.toLocaleString(locale, { ...OPTIONS[data.step], ...(isLong ? OPTIONS.day : {}) });
  };

  const stacked = (data) => {
    const paths = uPlot.paths.bars({ size: [0.7, 42], radius: 0.12 });
    const series = data.series.map((_, index) => {
      const colour = token(`series-${index + 1}`);
      return { fill: colour, stroke: colour, width: 0, paths, points: { show: false } };
    });
    return { values: plotting.stacked(data.series.map((series) => series.values)), series: series.reverse() };
  };

  const lines = (data) => ({
    values: data.series.map((series) => series.values),
    series: data.series.map((series, index) => ({
      stroke: token(`series-${index + 1}`),
      width: 1.75,
      points: { show: series.values.filter((value) => value !== null).length < 32, size: 5 },
      spanGaps: true,
    })),
  });

  // Of bars the sum, of lines the newest point.
  const inTheEnd = (data, values) =>
    isLatency(data) ? values.findLast((value) => value !== null) : values.reduce((a, b) => a + b, 0);

  const draw = (card, data) => {
    const box = card.querySelector("[data-plot]");
    const legend = card.querySelector("[data-legend]");
    const note = card.querySelector("[data-note]");
    note.textContent = data.note;
    note.hidden = !data.note;
    if (!data.series.some((series) => series.values.some(Boolean))) {
      const isCalm = data.metric === "errors";
      plotting.empty(box, isCalm ? gettext("No call failed in this period.") : gettext("Nothing yet in this period. The first call fills this chart."));
      plotting.legend(legend, []);
      return;
    }
    const { values, series } = isLatency(data) ? lines(data) : stacked(data);
    const top = Math.max(...values.flat());
    // Over a stack, its height.
    const heading = (at) =>
      isLatency(data) || data.series.length < 2
        ? label(data, at)
        : `${label(data, at)}: ${print(data, data.series.reduce((sum, each) => sum + each.values[at], 0))}`;
    const tip = plotting.tip(box, (at) => [
      heading(at),
      ...data.series.map((series) => [series.label, print(data, series.values[at])]),
    ]);
    box.replaceChildren();
    new uPlot(
      {
        width: box.clientWidth,
        height: box.clientHeight,
        // The last label on the right is wider than its bar.
        padding: [12, 16, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { show: isLatency(data), size: 6 }, drag: { setScale: false, x: false } },
        scales: { x: { time: false, range: [-0.5, data.keys.length - 0.5] }, y: { range: [0, top * 1.08] } },
        axes: [
          plotting.below({
            space: data.keys.length > 26 && data.step === "hour" ? 96 : 56,
            incrs: [1, 2, 3, 4, 5, 7, 10, 14, 15, 24, 30, 48, 72, 96, 168],
            values: (_, splits) => splits.map((at) => (Number.isInteger(at) && data.keys[at] ? label(data, at) : "")),
          }),
          plotting.beside({
            size: data.metric === "spend" ? 64 : 56,
            values: (_, splits) => splits.map((value) => printShort(data, value)),
          }),
        ],
        series: [{}, ...series],
        hooks: tip.hooks,
      },
      [data.keys.map((_, at) => at), ...values],
      box,
    );
    box.append(tip.element);
    plotting.legend(legend, data.series.map((series) => [series.label, print(data, inTheEnd(data, series.values))]));
  };

  for (const card of document.querySelectorAll("[data-chart]")) {
    const box = card.querySelector("[data-plot]");
    const split = card.querySelector("[data-split]");
    const pressed = (name) => card.querySelector(`[data-${name}][aria-pressed="true"]`);
    let data;
    let asked;

    const choices = () => ({
      days: pressed("step").dataset.days,
      step: pressed("step").dataset.step,
      metric: pressed("metric").dataset.metric,
      split: split.value,
    });

    // The page's address and its links lead to what is shown.
    const keepAddress = () => {
      const keep = (address) => {
        const url = new URL(address, location.href);
        for (const [name, value] of Object.entries(choices())) {
          if (name === "days") continue;
          if (value) url.searchParams.set(name, value);
          else url.searchParams.delete(name);
        }
        return url;
      };
      history.replaceState(null, "", keep(location.href));
      for (const link of document.querySelectorAll("nav a.segment")) link.href = keep(link.href);
    };

    const load = async () => {
      asked?.abort();
      const own = (asked = new AbortController());
      const address = new URL(card.dataset.chart, location.href);
      for (const [name, value] of Object.entries(choices())) if (value) address.searchParams.set(name, value);
      box.setAttribute("aria-busy", "true");
      let answer;
      try {
        answer = await fetch(address, { headers: { Accept: "application/json" }, signal: own.signal });
        if (!answer.ok) throw new Error(answer.statusText);
        data = await answer.json();
      } catch {
        if (own.signal.aborted) return;
        data = undefined;
        plotting.empty(box, gettext("The chart could not be loaded. Reload the page to try again."));
        plotting.legend(card.querySelector("[data-legend]"), []);
      }
      box.removeAttribute("aria-busy");
      if (data) draw(card, data);
    };

    const change = () => {
      if (card.hasAttribute("data-keeps-address")) keepAddress();
      load();
    };
    card.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-metric], button[data-step]");
      if (!button) return;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      change();
    });
    split.addEventListener("change", change);
    plotting.onChange(card, () => data && draw(card, data));
    load();
  }
})();
