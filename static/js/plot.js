// What the charts of uPlot have in common: the reader's numbers, colours of the design tokens, axes, and the box under the cursor.
const plotting = (() => {
  "use strict";
  const locale = document.documentElement.lang === "en" ? "en-GB" : document.documentElement.lang;
  const short = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });

  const token = (name) => {
    // light-dark() is resolved by the browser only where a colour is used.
    const probe = document.createElement("span");
    probe.style.color = `var(--color-${name})`;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };

  const seconds = (value) => {
    if (value >= 100) return `${Math.round(value)} s`;
    if (value >= 1) return `${Number(value.toPrecision(3)).toLocaleString(locale)} s`;
    return value >= 0.1 ? `${Math.round(value * 1000)} ms` : `${Number((value * 1000).toPrecision(2))} ms`;
  };

  const axis = () => ({ stroke: token("faint"), font: "11px Inter, sans-serif", ticks: { show: false } });
  const below = (options) => ({ ...axis(), grid: { show: false }, size: 28, ...options });
  const beside = (options) => ({ ...axis(), grid: { stroke: token("line"), width: 1 }, ...options });

  const empty = (box, text) => {
    const note = document.createElement("p");
    note.className = "chart-empty";
    note.textContent = text;
    box.replaceChildren(note);
  };

  // [label, text] pairs, each beside the colour of its series; the text may be empty.
  const legend = (box, entries) =>
    box.replaceChildren(
      ...entries.map(([label, text], index) => {
        const entry = document.createElement("span");
        const swatch = document.createElement("span");
        swatch.className = `swatch swatch-${index + 1}`;
        entry.append(swatch, text ? `${label}: ${text}` : label);
        return entry;
      }),
    );

  // Each row from zero to the sum of itself and those before it; the last comes first, so that all of them show.
  const stacked = (rows) => {
    const sums = [];
    for (const [index, row] of rows.entries()) sums.push(row.map((value, at) => value + (index ? sums[index - 1][at] : 0)));
    return sums.reverse();
  };

  // `rows(at)` are a heading and a [label, text] pair for each series at that point.
  const tip = (box, rows) => {
    const element = document.createElement("div");
    element.className = "chart-tip";
    element.hidden = true;
    const move = (plot) => {
      const at = plot.cursor.idx;
      // Charts that share a cursor move together; the one under it tells.
      element.hidden = at == null || !plot.over.matches(":hover");
      if (element.hidden) return;
      const [heading, ...entries] = rows(at);
      const title = document.createElement("div");
      title.textContent = heading;
      legend(element, entries);
      element.prepend(title);
      const left = plot.valToPos(plot.data[0][at], "x") + plot.over.offsetLeft;
      element.style.left = `${Math.max(0, Math.min(left - element.offsetWidth / 2, box.clientWidth - element.offsetWidth))}px`;
    };
    return { element, hooks: { setCursor: [move] } };
  };

  // Again when the place or the colours have changed.
  const onChange = (element, redraw) => {
    let width = element.clientWidth;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) > 4) redraw();
      width = entry.contentRect.width;
    }).observe(element);
    document.addEventListener("theme", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  };

  return { locale, short, token, seconds, below, beside, empty, stacked, tip, legend, onChange };
})();
