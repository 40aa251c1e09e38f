// The charts of the operations view: lines over time, and bars of what was counted.
const operationsCharts = (page, words) => {
  "use strict";
  const { locale, seconds, short } = plotting;
  const exact = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
  const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
  const share = (value) => `${exact.format(value * 100)} %`;
  const count = (value) => short.format(value);
  const COUNTS = [1, 2, 5].flatMap((step) => [1, 10, 100, 1000, 10_000, 100_000, 1_000_000].map((power) => step * power)).sort((a, b) => a - b);
  const MOST_SERIES = 5;

  // More series than colours say nothing: the rarer ones are added up.
  const most = (series) => {
    if (series.length <= MOST_SERIES) return series;
    const rest = series.slice(MOST_SERIES - 1).map(([, values]) => values);
    return [...series.slice(0, MOST_SERIES - 1), [gettext("others"), rest[0].map((_, at) => rest.reduce((sum, row) => sum + row[at], 0))]];
  };
  const named = (counts, label) => most(Object.entries(counts).map(([name, values]) => [label(name), values]));

  // What is drawn: how values are written, the series as [label, values] pairs, the end of the scale or what it holds at least, whether as bars,
  // and the threshold with the series that it is for.
  const CHARTS = {
    ttft: { format: seconds, read: (view) => Object.entries(view.ttft), limit: "ttft", limited: "p95" },
    itl: { format: seconds, read: (view) => Object.entries(view.itl) },
    e2e: { format: seconds, read: (view) => Object.entries(view.e2e) },
    throughput: {
      format: count,
      read: ({ throughput }) => [
        [gettext("Output"), throughput.output],
        [gettext("Input"), throughput.input],
        [gettext("Cached input"), throughput.cached],
      ],
    },
    kv: { format: share, read: (view) => Object.entries(view.gauges.kv), top: 1, limit: "kv", limited: "p95" },
    context: { format: count, read: (view) => [[gettext("Tokens"), view.context_held]] },
    load: {
      format: (value) => exact.format(value),
      least: 1,
      read: ({ gauges }) => [
        [gettext("Batch"), gauges.running],
        [gettext("Streams"), gauges.streams],
        [gettext("Queue"), gauges.waiting],
      ],
    },
    shares: {
      format: share,
      top: 1,
      read: ({ gauges }) => [
        [gettext("Prefix hits"), gauges.prefix_hit],
        [gettext("Accepted drafts"), gauges.acceptance],
      ],
    },
    failures: { format: (value) => whole.format(value), isCounted: true, read: (view) => named(view.failures, (name) => words.failures[name] ?? name) },
    refusals: { format: (value) => whole.format(value), isCounted: true, read: (view) => named(view.refusals, (code) => words.refusals[code]?.label ?? code) },
  };

  const moment = (view, at, options) => new Date(at * 1000).toLocaleString(locale, { ...options, ...(view.range === "30d" ? { timeZone: "UTC" } : {}) });
  const DAY = { day: "numeric", month: "short" };
  const CLOCK = { hour: "2-digit", minute: "2-digit" };
  const tick = (view, at) => moment(view, at, view.range === "30d" ? DAY : CLOCK);
  const heading = (view, at) => moment(view, at, { "15m": CLOCK, "24h": { weekday: "short", ...CLOCK }, "30d": { weekday: "short", ...DAY } }[view.range]);

  const last = (values) => values.findLast((value) => value !== null);
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const print = (format, value) => (value === null || value === undefined ? "–" : format(value));
  let view = null;
  const plots = new Map();

  const legend = (name, series) => {
    const { format, isCounted, limit, limited } = CHARTS[name];
    const box = page.querySelector(`[data-line-legend="${name}"]`);
    plotting.legend(box, series.map(([label, values]) => [label, print(format, isCounted ? sum(values) : last(values))]));
    if (!limit) return;
    const bound = view.thresholds[limit];
    const at = series.findIndex(([label]) => label === limited);
    box.children[at]?.classList.toggle("text-bad", last(series[at][1]) > bound);
    const entry = document.createElement("span");
    const swatch = document.createElement("span");
    swatch.className = "swatch-limit";
    entry.append(swatch, interpolate(gettext("alert above %s"), [format(bound)]));
    box.append(entry);
  };

  const limitLine = (bound) => (plot) => {
    if (bound > plot.scales.y.max) return;
    const { ctx, bbox } = plot;
    const y = plot.valToPos(bound, "y", true);
    ctx.save();
    ctx.strokeStyle = plotting.token("bad");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  };

  // A value between two gaps makes no line.
  const alone = (plot, index) => {
    const values = plot.data[index];
    return values.flatMap((value, at) => (value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : []));
  };

  const options = (name, box, series) => {
    const { format, top, least = 0, isCounted, limit } = CHARTS[name];
    const bars = isCounted ? uPlot.paths.bars({ size: [0.7, 28], radius: 0.1 }) : null;
    const tip = plotting.tip(box, (at) => {
      const rows = plots.get(name).series.map(([label, values]) => [label, print(format, values[at])]);
      return [heading(view, view.times[at]), ...rows];
    });
    const coloured = series.map(([label], index) => {
      const colour = plotting.token(`series-${index + 1}`);
      if (isCounted) return { label, fill: colour, stroke: colour, width: 0, paths: bars, points: { show: false } };
      return { label, stroke: colour, width: 1.75, spanGaps: false, points: { show: false, filter: alone, size: 5, fill: colour } };
    });
    return {
      tip,
      options: {
        width: box.clientWidth,
        height: box.clientHeight,
        // The newest label stands below the end of the axis.
        padding: [8, 22, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { show: !isCounted, size: 6 }, drag: { setScale: false, x: false }, sync: { key: "operations" } },
        scales: {
          x: { range: (_, low, high) => (isCounted ? [low - view.step_s / 2, high + view.step_s / 2] : [low, high]) },
          y: { range: (_, low, high) => [0, top ?? (Math.max(high * 1.1, least) || 1)] },
        },
        axes: [
          plotting.below({ space: 64, values: (_, splits) => splits.map((at) => tick(view, at)) }),
          plotting.beside({
            size: (_, labels) => 12 + 6.2 * Math.max(...(labels ?? [""]).map((label) => label.length), 2),
            space: 28,
            values: (_, splits) => splits.map((value) => (value === 0 ? "0" : format(value))),
            ...(isCounted ? { incrs: COUNTS } : {}),
          }),
        ],
        series: [{}, ...(isCounted ? coloured.reverse() : coloured)],
        hooks: { ...tip.hooks, ...(limit ? { drawAxes: [limitLine(view.thresholds[limit])] } : {}) },
      },
    };
  };

  const draw = (name) => {
    const box = page.querySelector(`[data-line="${name}"]`);
    const { read, isCounted } = CHARTS[name];
    const series = read(view);
    const shape = series.map(([label]) => label).join();
    let known = plots.get(name);
    // Of what is counted, none at all is said in words; what is measured may be zero all along.
    if (!series.some(([, values]) => values.some((value) => value !== null && !(isCounted && value === 0)))) {
      known?.plot.destroy();
      plots.delete(name);
      plotting.empty(box, isCounted ? gettext("None in this period.") : gettext("Nothing was measured in this period."));
      legend(name, []);
      return;
    }
    legend(name, series);
    const values = series.map(([, row]) => row);
    const data = [view.times, ...(isCounted ? plotting.stacked(values) : values)];
    if (known && (known.shape !== shape || known.width !== box.clientWidth || known.range !== view.range)) {
      known.plot.destroy();
      known = undefined;
    }
    if (known) {
      known.series = series;
      known.plot.setData(data);
      return;
    }
    box.replaceChildren();
    const { tip, options: chosen } = options(name, box, series);
    const plot = new uPlot(chosen, data, box);
    box.append(tip.element);
    plots.set(name, { plot, series, shape, width: box.clientWidth, range: view.range });
  };

  const show = (next) => {
    view = next;
    for (const name of Object.keys(CHARTS)) draw(name);
  };
  plotting.onChange(page, () => {
    if (!view) return;
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
    show(view);
  });
  const fail = (text) => {
    for (const box of page.querySelectorAll("[data-line]")) plotting.empty(box, text);
  };
  return { show, fail, share, count, exact };
};
