// A model's list price over time, as steps: from the JSON in the element that data-prices names.
(() => {
  "use strict";
  const NAMES = ["input", "cached", "output"];
  const DAY_S = 86400;
  const AXIS_PX = 56;
  const DATE_PX = 110;

  const draw = (box, data, labels) => {
    const money = new Intl.NumberFormat(plotting.locale, {
      style: "currency",
      currency: data.currency,
      currencyDisplay: "narrowSymbol",
      maximumFractionDigits: 4,
    });
    const day = (at) => new Date(at * 1000).toLocaleDateString(plotting.locale, { day: "numeric", month: "short", year: "numeric" });
    // The last step goes on: to now, and past the last change that is to come. A price of today is drawn from yesterday's
    // edge, so that there is a line.
    const first = data.times[0];
    const end = Math.max(data.now, data.times.at(-1)) + Math.max(DAY_S, (data.now - first) / 24);
    const times = [...data.times, end];
    const values = NAMES.map((name) => [...data.series[name], data.series[name].at(-1)]);
    const top = Math.max(...values.flat().filter((value) => value !== null));
    const tip = plotting.tip(box, (at) => [
      day(times[at] === end ? data.times.at(-1) : times[at]),
      ...NAMES.map((_, index) => [labels[index], values[index][at] === null ? "–" : money.format(values[index][at])]),
    ]);
    // Two days at least, so that one sees how much time is shown; as many as there is room for, and none twice.
    const dates = (_plot, _axis, from, until) => {
      const wanted = Math.max(2, Math.floor((box.clientWidth - AXIS_PX) / DATE_PX));
      const parts = Math.min(wanted, Math.max(1, Math.floor((until - from) / DAY_S)));
      return Array.from({ length: parts }, (_, at) => from + ((until - from) * (at + 0.5)) / parts);
    };
    // What is scheduled stands right of a line at now.
    const now = (plot) => {
      if (!data.times.some((at) => at > data.now)) return;
      const left = Math.round(plot.valToPos(data.now, "x", true));
      plot.ctx.save();
      plot.ctx.strokeStyle = plotting.token("faint");
      plot.ctx.setLineDash([4, 4]);
      plot.ctx.beginPath();
      plot.ctx.moveTo(left, plot.bbox.top);
      plot.ctx.lineTo(left, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
      plot.ctx.restore();
    };
    box.replaceChildren();
    new uPlot(
      {
        width: box.clientWidth,
        height: box.clientHeight,
        padding: [12, 16, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false } },
        scales: { x: { time: false, range: [first, end] }, y: { range: [0, top * 1.15 || 1] } },
        axes: [
          plotting.below({ splits: dates, values: (_, splits) => splits.map(day) }),
          plotting.beside({ size: AXIS_PX, values: (_, splits) => splits.map((value) => money.format(value)) }),
        ],
        series: [
          {},
          ...NAMES.map((_, index) => ({
            stroke: plotting.token(`series-${index + 1}`),
            width: 2,
            paths: uPlot.paths.stepped({ align: 1 }),
            points: { show: false },
          })),
        ],
        hooks: { ...tip.hooks, draw: [now] },
      },
      [times, ...values],
      box,
    );
    box.append(tip.element);
  };

  for (const box of document.querySelectorAll("[data-prices]")) {
    const data = JSON.parse(document.getElementById(box.dataset.prices).textContent);
    const labels = box.dataset.labels.split("|");
    const redraw = () => draw(box, data, labels);
    plotting.onChange(box, redraw);
    redraw();
    plotting.legend(box.parentElement.querySelector("[data-legend]"), labels.map((label) => [label, ""]));
  }
})();
