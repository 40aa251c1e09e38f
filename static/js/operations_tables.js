// The tables of the operations view: deployments now, groups of the period, and refusals with who met them.
const operationsTables = (page, words) => {
  "use strict";
  const { locale, seconds, short } = plotting;
  const exact = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
  const share = (value) => `${exact.format(value * 100)} %`;
  const whole = (value) => value.toLocaleString(locale);
  const print = (format, value) => (value === null || value === undefined ? "–" : format(value));

  const make = (tag, className, ...children) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };
  const link = (address, text, className = "") => {
    const element = make("a", className, text);
    element.href = address;
    return element;
  };
  const sub = (text) => make("span", "sub", text);
  const wideSub = (text) => make("span", "sub wide", text);
  const number = (className, ...children) => make("td", `num ${className}`.trim(), ...children);

  const fill = (name, rows, empty) => {
    const body = page.querySelector(`[data-rows="${name}"]`);
    if (!rows.length) {
      const cell = make("td", "text-faint", empty);
      cell.colSpan = 12;
      rows = [make("tr", "", cell)];
    }
    // Whoever reads a link by keyboard keeps it.
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    // A row that is the same stays: a press on it is not lost.
    rows.forEach((row, at) => {
      const known = body.children[at];
      if (!known) body.append(row);
      else if (!known.isEqualNode(row)) known.replaceWith(row);
    });
    while (body.children.length > rows.length) body.lastElementChild.remove();
    if (focused) [...body.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
  };

  const STATES = {
    answers: ["badge badge-ok", gettext("Answers")],
    silent: ["badge badge-bad", gettext("Silent")],
    upstream: ["badge badge-accent", gettext("Upstream")],
  };
  const meter = (value, most, isFull, label) => {
    const bar = make("progress", `meter${isFull ? " is-full" : ""}`);
    bar.max = most || 1;
    bar.value = value || 0;
    bar.setAttribute("aria-label", label);
    return bar;
  };

  // Of a KV cache in two stages, each kind of pages: either may be the short one.
  const stages = (row) =>
    row.three_bit_pages_total
      ? [
          wideSub(interpolate(gettext("FP8: %s of %s pages"), [whole(row.pages_used), whole(row.pages_total)])),
          wideSub(interpolate(gettext("three bits: %s of %s"), [whole(row.three_bit_pages_used), whole(row.three_bit_pages_total)])),
        ]
      : [];

  const deployments = ({ present, thresholds }) =>
    present.deployments.map((row) => {
      const [className, label] = STATES[row.state];
      const isFull = row.kv !== null && row.kv > thresholds.kv;
      const queue = number("", print(whole, row.waiting));
      if (row.is_queue_long) queue.classList.add("text-bad");
      return make(
        "tr",
        "",
        make("td", "name", link(row.page, row.name, "font-semibold"), sub(row.address)),
        make("td", "", make("span", className, label), ...(row.error ? [sub(words.refusals[row.error_code]?.label ?? ""), sub(row.error)] : [])),
        number("", ...(row.running === null ? ["–"] : [`${whole(row.running)} / ${whole(row.capacity)}`, meter(row.running, row.capacity, false, gettext("Batch"))])),
        queue,
        number("wide", whole(row.streams)),
        number(isFull ? "text-bad" : "", ...(row.kv === null ? ["–"] : [share(row.kv), meter(row.kv, 1, isFull, gettext("KV cache")), ...stages(row)])),
        number("wide", print((value) => exact.format(value), row.output_per_s)),
      );
    });

  const only = (group, key) => {
    const address = new URL(location.href);
    address.searchParams.set(group, key);
    return address.pathname + address.search;
  };
  const why = (failures) =>
    Object.entries(failures)
      .sort(([, a], [, b]) => b - a)
      .map(([name, count]) => `${words.failures[name] ?? name}: ${whole(count)}`)
      .join(", ");
  const timing = (percentiles, wide = {}) =>
    ["p50", "p95", "p99"].map((percent) => number(wide[percent] ?? "wide", print(seconds, percentiles[percent])));

  const groups = ({ groups: rows, thresholds }, group) =>
    rows.map((row) => {
      const isBad = row.failed_share > thresholds.failed_share;
      const failed = number(isBad ? "text-bad" : "", print(share, row.failed_share));
      if (row.failed) failed.title = why(row.failures);
      const first = timing(row.ttft, { p95: "" });
      if (row.ttft.p95 > thresholds.ttft) first[1].classList.add("text-bad");
      const name = make("td", "name", row.only ? link(only(group, row.only), row.name) : row.name);
      if (row.detail) name.append(sub(row.detail));
      if (isBad) name.append(sub(why(row.failures)));
      if (row.page) name.append(" ", link(row.page, gettext("Open"), "text-faint text-sm whitespace-nowrap"));
      return make(
        "tr",
        "",
        name,
        number("", whole(row.requests)),
        failed,
        number("wide", short.format(row.output)),
        number("wide", print(share, row.context_share)),
        ...first,
        ...timing(row.itl),
        ...timing(row.e2e),
      );
    });

  const refused = ({ refused: rows }) =>
    rows.map(({ code, count, organizations }) => {
      const word = words.refusals[code];
      const who = organizations.flatMap((each, at) => [at ? ", " : "", link(each.page, each.name), ` ${whole(each.count)}`]);
      const label = make("span", word?.is_ours ? "badge badge-bad" : "font-semibold", word?.label ?? code);
      return make(
        "tr",
        "",
        make("td", "name", label, sub(code)),
        number("", whole(count)),
        make("td", "", ...(who.length ? who : [make("span", "text-faint", gettext("no organization known"))])),
        make("td", "wide text-muted text-sm", word?.remedy ?? ""),
      );
    });

  return {
    fail(text) {
      for (const name of ["deployments", "groups", "refused"]) fill(name, [], text);
    },
    show(view, group) {
      fill("deployments", deployments(view), gettext("No deployment was sampled in the last minute."));
      fill("groups", groups(view, group), gettext("No calls in this period."));
      fill("refused", refused(view), gettext("No call was refused in this period."));
    },
  };
};
