// The chart of the page of the design.
(() => {
  "use strict";
  const card = document.querySelector("[data-design-chart]");
  if (!card) return;
  const box = card.querySelector(".chart");
  const SERIES = ["p50", "p95"];
  const hours = Array.from({ length: 24 }, (_, hour) => hour);
  const rows = [hours.map((hour) => 0.2 + 0.1 * Math.sin(hour / 4)), hours.map((hour) => 0.5 + 0.2 * Math.sin(hour / 3))];
  const clock = (hour) => `${hour}:00`;
  const draw = () => {
    const tip = plotting.tip(box, (at) => [clock(hours[at]), ...SERIES.map((label, index) => [label, plotting.seconds(rows[index][at])])]);
    box.replaceChildren();
    new uPlot(
      {
        width: box.clientWidth,
        height: box.clientHeight,
        padding: [8, 22, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false } },
        scales: { x: { time: false }, y: { range: [0, 0.8] } },
        axes: [
          plotting.below({ space: 64, values: (_, splits) => splits.map(clock) }),
          plotting.beside({ size: 56, values: (_, splits) => splits.map(plotting.seconds) }),
        ],
        series: [{}, ...SERIES.map((_, index) => ({ stroke: plotting.token(`series-${index + 1}`), width: 1.75, points: { show: false } }))],
        hooks: tip.hooks,
      },
      [hours, ...rows],
      box,
    );
    box.append(tip.element);
    plotting.legend(card.querySelector(".chart-legend"), SERIES.map((label, index) => [label, plotting.seconds(rows[index].at(-1))]));
  };
  plotting.onChange(card, draw);
  draw();
})();
