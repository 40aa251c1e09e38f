// The operations view: lines over time by uPlot, from the JSON that data-address names, then pushed over a WebSocket.
(() => {
  "use strict";
  const page = document.getElementById("operations");
  if (!page) return;
  const RETRY_MS = [1000, 2000, 5000, 10000];
  const STALE_S = 30;
  const { locale, seconds } = plotting;
  const compact = plotting.short;
  const exact = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });

  const share = (value) => `${exact.format(value * 100)} %`;
  const print = (format, value) => (value === null || value === undefined ? "–" : format(value));

  // name: [unit, series of the view as [label, values]]
  const percents = (series) => Object.entries(series).map(([label, values]) => [label, values]);
  const CHARTS = {
    ttft: [seconds, (view) => percents(view.ttft)],
    itl: [seconds, (view) => percents(view.itl)],
    e2e: [seconds, (view) => percents(view.e2e)],
    throughput: [
      (value) => compact.format(value),
      (view) => [
        [gettext("Output"), view.throughput.output],
        [gettext("Input"), view.throughput.input],
        [gettext("Cached input"), view.throughput.cached],
      ],
    ],
    kv: [share, (view) => percents(view.gauges.kv), 1],
    context: [(value) => compact.format(value), (view) => [[gettext("Tokens"), view.context.held]]],
    load: [
      (value) => exact.format(value),
      (view) => [
        [gettext("Queue"), view.gauges.waiting],
        [gettext("Batch"), view.gauges.running],
        [gettext("Streams"), view.gauges.streams],
      ],
    ],
    shares: [
      share,
      (view) => [
        [gettext("Prefix hits"), view.gauges.prefix_hit],
        [gettext("Accepted drafts"), view.gauges.acceptance],
      ],
      1,
    ],
    failures: [(value) => compact.format(value), (view) => most(Object.entries(view.failures), 5)],
    refusals: [(value) => compact.format(value), (view) => most(Object.entries(view.refusals), 5)],
  };

  // More lines than colours say nothing: the rarer ones are added up.
  const most = (series, count) => {
    if (series.length <= count) return series;
    const rest = series.slice(count - 1).map(([, values]) => values);
    return [...series.slice(0, count - 1), [gettext("others"), rest[0].map((_, at) => rest.reduce((sum, row) => sum + row[at], 0))]];
  };

  const time = (at, isLong) => {
    const date = new Date(at * 1000);
    return isLong
      ? date.toLocaleDateString(locale, { day: "numeric", month: "short", timeZone: "UTC" })
      : date.toLocaleTimeString(locale, { hour: "2-digit", minute: "2-digit" });
  };

  let view = null;
  const plots = new Map();

  const legend = (name, format, series) =>
    plotting.legend(
      page.querySelector(`[data-line-legend="${name}"]`),
      series.map(([label, values]) => [label, print(format, values.findLast((value) => value !== null))]),
    );

  const draw = (name) => {
    const box = page.querySelector(`[data-line="${name}"]`);
    const [format, read, top] = CHARTS[name];
    const series = read(view);
    const shape = series.map(([label]) => label).join();
    const data = [view.times, ...series.map(([, values]) => values)];
    const hasData = series.some(([, values]) => values.some((value) => value !== null && value !== 0));
    let known = plots.get(name);
    if (!hasData) {
      known?.plot.destroy();
      plots.delete(name);
      plotting.empty(box, name === "failures" || name === "refusals" ? gettext("None in this period.") : gettext("Nothing was measured in this period."));
      legend(name, format, []);
      return;
    }
    if (known && (known.shape !== shape || known.width !== box.clientWidth)) {
      known.plot.destroy();
      known = undefined;
    }
    legend(name, format, series);
    if (known) {
      known.plot.setData(data);
      return;
    }
    box.replaceChildren();
    const isLong = view.range === "30d";
    const tip = plotting.tip(box, (at) => {
      const { data, series } = plots.get(name).plot;
      return [time(data[0][at], isLong), ...series.slice(1).map((row, index) => `${row.label}: ${print(format, data[index + 1][at])}`)];
    });
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height: box.clientHeight,
        padding: [12, 8, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false } },
        scales: { y: { range: (_, low, high) => [0, top ?? (high > 0 ? high * 1.1 : 1)] } },
        axes: [
          plotting.below({ space: 64, values: (_, splits) => splits.map((at) => time(at, isLong)) }),
          plotting.beside({ size: 58, values: (_, splits) => splits.map(format) }),
        ],
        series: [
          {},
          ...series.map(([label], index) => ({
            label,
            stroke: plotting.token(`series-${index + 1}`),
            width: 1.75,
            spanGaps: false,
            points: { show: series[index][1].filter((value) => value !== null).length < 3, size: 5 },
          })),
        ],
        hooks: tip.hooks,
      },
      data,
      box,
    );
    box.append(tip.element);
    plots.set(name, { plot, shape, width: box.clientWidth });
  };

  const PRESENT = { kv: share, output_per_s: (value) => compact.format(value) };
  const cells = (row) => [
    [row.name],
    [row.requests.toLocaleString(locale), "num"],
    [print(share, row.failed_share), "num wide"],
    [compact.format(row.output), "num wide"],
    [print(share, row.context_share), "num wide"],
    [print(seconds, row.ttft.p50), "num"],
    [print(seconds, row.ttft.p95), "num"],
    [print(seconds, row.ttft.p99), "num wide"],
    [print(seconds, row.itl.p50), "num wide"],
    [print(seconds, row.itl.p95), "num wide"],
    [print(seconds, row.e2e.p95), "num wide"],
  ];

  const show = (next) => {
    view = next;
    for (const box of page.querySelectorAll("[data-now]")) {
      const name = box.dataset.now;
      const value = view.present.sampled_at === null ? null : view.present[name];
      box.textContent = print(PRESENT[name] ?? ((number) => number.toLocaleString(locale)), value);
    }
    for (const box of page.querySelectorAll("[data-sum]")) {
      const value = view.sums[box.dataset.sum];
      box.textContent = print(box.dataset.sum.endsWith("_share") ? share : (number) => compact.format(number), value);
    }
    for (const name of Object.keys(CHARTS)) draw(name);
    const body = page.querySelector("[data-groups]");
    const rows = view.groups.map((group) => {
      const row = document.createElement("tr");
      for (const [text, kind] of cells(group)) {
        const cell = document.createElement("td");
        cell.className = kind ?? "name";
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    });
    if (!rows.length) {
      const row = document.createElement("tr");
      const cell = document.createElement("td");
      cell.colSpan = 11;
      cell.className = "faint";
      cell.textContent = gettext("No calls in this period.");
      row.append(cell);
      rows.push(row);
    }
    body.replaceChildren(...rows);
    tellState();
  };

  // Live ---------------------------------------------------------------------------------------------------------
  const badge = document.getElementById("live");
  const note = document.getElementById("live-text");
  // Unknown until the first connection is open or has failed: the page says that it connects.
  let isOpen;
  let receivedAt = 0;

  const tellState = () => {
    if (isOpen === undefined) return;
    const sampledAt = view?.present.sampled_at;
    const isStale = !sampledAt || view.now - sampledAt > STALE_S || (isOpen && Date.now() - receivedAt > STALE_S * 1000);
    badge.className = `badge ${!isOpen ? "badge-warn" : isStale ? "badge-bad" : "badge-ok"}`;
    badge.textContent = !isOpen ? gettext("Not connected") : isStale ? gettext("No samples") : gettext("Live");
    note.textContent = !isOpen
      ? gettext("Trying again; the figures below are from the last reading.")
      : isStale
        ? gettext("No deployment was asked lately: does the worker run?")
        : "";
  };

  const filters = () => Object.fromEntries(new URL(page.dataset.address, location.href).searchParams);

  const connect = (attempt = 0) => {
    const socket = new WebSocket(new URL(page.dataset.socket, location.href.replace(/^http/, "ws")));
    socket.addEventListener("open", () => {
      isOpen = true;
      socket.send(JSON.stringify(filters()));
    });
    socket.addEventListener("message", (event) => {
      attempt = 0;
      receivedAt = Date.now();
      show(JSON.parse(event.data));
    });
    socket.addEventListener("close", () => {
      isOpen = false;
      tellState();
      setTimeout(() => connect(attempt + 1), RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]);
    });
  };

  const load = async () => {
    const answer = await fetch(page.dataset.address, { headers: { Accept: "application/json" } });
    if (!answer.ok) {
      for (const box of page.querySelectorAll("[data-line]")) plotting.empty(box, gettext("This could not be loaded. Correct the filters, or reload the page."));
      return;
    }
    show(await answer.json());
    connect();
  };

  const redraw = () => {
    if (!view) return;
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
    for (const name of Object.keys(CHARTS)) draw(name);
  };
  plotting.onChange(page, redraw);
  setInterval(tellState, 5000);
  load();
})();
