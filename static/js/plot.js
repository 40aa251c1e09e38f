// What the charts of uPlot have in common: the reader's numbers, colours of the design tokens, axes, and the box under the cursor.
const plotting = (() => {
  "use strict";
  const locale = document.documentElement.lang === "en" ? "en-GB" : document.documentElement.lang;
  const short = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });

  const token = (name) => {
    // light-dark() is resolved by the browser only where a colour is used.
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
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

  const axis = () => ({ stroke: token("text-3"), font: "11px Inter, sans-serif", ticks: { show: false } });
  const below = (options) => ({ ...axis(), grid: { show: false }, size: 28, ...options });
  const beside = (options) => ({ ...axis(), grid: { stroke: token("line"), width: 1 }, ...options });

  const empty = (box, text) => {
    const note = document.createElement("p");
    note.className = "chart-empty";
    note.textContent = text;
    box.replaceChildren(note);
  };

  // `lines(at)` are the texts at that point.
  const tip = (box, lines) => {
    const element = document.createElement("div");
    element.className = "chart-tip";
    element.hidden = true;
    const move = (plot) => {
      const at = plot.cursor.idx;
      element.hidden = at == null;
      if (at == null) return;
      element.textContent = lines(at).join("\n");
      const left = plot.valToPos(plot.data[0][at], "x") + plot.over.offsetLeft;
      element.style.left = `${Math.max(0, Math.min(left - element.offsetWidth / 2, box.clientWidth - element.offsetWidth))}px`;
    };
    return { element, hooks: { setCursor: [move] } };
  };

  // [label, text] pairs, each beside the colour of its series.
  const legend = (box, entries) =>
    box.replaceChildren(
      ...entries.map(([label, text], index) => {
        const entry = document.createElement("span");
        const swatch = document.createElement("span");
        swatch.className = `swatch swatch-${index + 1}`;
        entry.append(swatch, `${label}: ${text}`);
        return entry;
      }),
    );

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

  return { locale, short, token, seconds, below, beside, empty, tip, legend, onChange };
})();
