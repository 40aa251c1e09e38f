// The operations view: figures, charts and tables from the JSON that data-address names, then pushed over a WebSocket.
(() => {
  "use strict";
  const page = document.getElementById("operations");
  if (!page) return;
  const RETRY_MS = [1000, 2000, 5000, 10000];
  const STALE_S = 30;
  const { locale } = plotting;
  const words = JSON.parse(document.getElementById("operations-words").textContent);
  const charts = operationsCharts(page, words);
  const tables = operationsTables(page, words);
  const print = (format, value) => (value === null || value === undefined ? "–" : format(value));
  const count = (value) => (value < 100_000 ? value.toLocaleString(locale) : charts.count(value));
  const FORMATS = { kv: charts.share, failed_share: charts.share, context_share: charts.share, output_per_s: charts.count };

  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const isBad = {
    waiting: ({ present }) => present.deployments.some((row) => row.is_queue_long),
    kv: ({ present, thresholds }) => present.kv > thresholds.kv,
    answering: ({ present }) => present.answering < present.engines,
    failed_share: ({ sums, thresholds }) => sums.failed_share > thresholds.failed_share,
    refused_ours: (view) => ours(view) > 0,
  };
  const counted = (refusals, isWanted) => sum(Object.entries(refusals).map(([code, values]) => (isWanted(code) ? sum(values) : 0)));
  const ours = (view) => counted(view.refusals, (code) => words.refusals[code]?.is_ours);

  const figures = (view) => {
    const isKnown = view.present.sampled_at !== null;
    const values = { ...view.sums, ...(isKnown ? view.present : {}), refused: counted(view.refusals, () => true), refused_ours: ours(view) };
    for (const box of page.querySelectorAll("[data-figure]")) {
      const name = box.dataset.figure;
      box.textContent = print(FORMATS[name] ?? count, values[name]);
      if (isBad[name]) box.closest(".stat").classList.toggle("is-bad", isKnown && isBad[name](view));
    }
    const staged = page.querySelector("[data-staged]");
    if (staged) staged.hidden = !view.present.three_bit_pages_total;
  };

  let view = null;
  const show = (next) => {
    view = next;
    figures(view);
    charts.show(view);
    tables.show(view, page.dataset.group);
    tellState();
  };

  // Live ---------------------------------------------------------------------------------------------------------
  const badge = document.getElementById("live");
  const note = document.getElementById("live-text");
  // Unknown until the first connection is open or has failed: the page says that it connects.
  let isOpen;
  let isSignedOut = false;
  let isBarred = false;
  let receivedAt = 0;

  const tell = (kind, text, more) => {
    badge.className = `badge badge-${kind}`;
    // A status is read out when it changes, so it is only written then.
    if (badge.textContent !== text) badge.textContent = text;
    note.textContent = more;
  };
  const tellState = () => {
    if (isOpen === undefined) return;
    const sampledAt = view?.present.sampled_at;
    const time = view ? new Date((sampledAt ?? view.now) * 1000).toLocaleTimeString(locale) : "";
    const asOf = view ? interpolate(gettext("The figures are of %s."), [time]) : "";
    const isStale = !sampledAt || view.now - sampledAt > STALE_S || (isOpen && Date.now() - receivedAt > STALE_S * 1000);
    if (isSignedOut) tell("bad", gettext("Signed out"), `${gettext("Reload the page to sign in again.")} ${asOf}`);
    else if (isBarred) tell("bad", gettext("No longer allowed"), `${gettext("Your account is not an operator's any more.")} ${asOf}`);
    else if (!isOpen) tell("warn", gettext("Not connected"), `${gettext("Trying again.")} ${asOf}`);
    else if (view && !view.present.enabled) tell("warn", gettext("Nothing to measure"), gettext("No deployment is enabled here."));
    else if (isStale) tell("bad", gettext("No samples"), `${gettext("No deployment was asked lately: does the worker run?")} ${asOf}`);
    else if (view.present.engines && !view.present.answering) tell("bad", gettext("No engine answers"), `${gettext("Calls are refused until one is back.")} ${asOf}`);
    else tell("ok", gettext("Live"), time);
  };

  const ask = () => fetch(page.dataset.address, { headers: { Accept: "application/json" }, redirect: "manual" });
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
    socket.addEventListener("close", async () => {
      isOpen = false;
      tellState();
      // A refused socket does not say why: the page's own data does.
      const answer = attempt ? await ask().catch(() => null) : null;
      isSignedOut = answer?.type === "opaqueredirect";
      isBarred = answer?.status === 404;
      tellState();
      if (!isSignedOut && !isBarred) setTimeout(() => connect(attempt + 1), RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]);
    });
  };

  const load = async () => {
    const answer = await ask().catch(() => null);
    if (answer?.ok) show(await answer.json());
    else {
      const text = gettext("This could not be loaded. Correct the filters, or reload the page.");
      charts.fail(text);
      tables.fail(text);
    }
    page.removeAttribute("aria-busy");
    if (answer?.status === 400) tell("warn", gettext("Not connected"), "");
    else connect();
  };

  setInterval(tellState, 5000);
  load();
})();
