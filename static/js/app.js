// Small behaviours of every page: theme, menus, dialogs, copy buttons, tabs, the reader's time zone.
(() => {
  "use strict";
  const root = document.documentElement;
  const on = (type, selector, act) =>
    document.addEventListener(type, (event) => {
      const target = event.target instanceof Element && event.target.closest(selector);
      if (target) act(target, event);
    });

  // The server prints times in this zone from the next page on.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) document.cookie = `time_zone=${encodeURIComponent(zone)};path=/;max-age=31536000;samesite=lax`;

  // Theme: system, light, dark.
  const themes = ["system", "light", "dark"];
  const showTheme = () => {
    const label = document.querySelector("[data-theme-label]");
    if (label) label.textContent = { light: gettext("Theme: light"), dark: gettext("Theme: dark") }[root.dataset.theme] ?? gettext("Theme: system");
    for (const button of document.querySelectorAll("[data-theme-set]"))
      button.setAttribute("aria-pressed", String(button.dataset.themeSet === (root.dataset.theme || "system")));
  };
  on("click", "[data-theme-next], [data-theme-set]", (button) => {
    const next = button.dataset.themeSet ?? themes[(themes.indexOf(root.dataset.theme || "system") + 1) % themes.length];
    if (next === "system") {
      delete root.dataset.theme;
      localStorage.removeItem("theme");
    } else {
      root.dataset.theme = next;
      localStorage.setItem("theme", next);
    }
    showTheme();
    document.dispatchEvent(new Event("theme"));
  });
  showTheme();

  // Sidebar on a narrow screen: while it is open nothing else is reached, and the focus comes back to its button.
  const toggle = document.querySelector("[data-nav-toggle]");
  const sidebar = document.getElementById("sidebar");
  const openNav = (isOpen) => {
    if (isOpen === root.classList.contains("nav-open")) return;
    root.classList.toggle("nav-open", isOpen);
    toggle.setAttribute("aria-expanded", String(isOpen));
    for (const part of document.querySelectorAll(".skip-link, .topbar, .content")) part.inert = isOpen;
    (isOpen ? sidebar.querySelector("a, summary, button") : toggle).focus();
  };
  on("click", "[data-nav-toggle]", () => openNav(!root.classList.contains("nav-open")));
  on("click", "[data-nav-close]", () => openNav(false));
  matchMedia("(min-width: 60rem)").addEventListener("change", () => sidebar && openNav(false));

  // Menus close on a click elsewhere and on Escape.
  const closeMenus = (except) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== except) menu.open = false;
  };
  document.addEventListener("click", (event) => closeMenus(event.target.closest?.("details.menu")));
  document.addEventListener("focusin", (event) => closeMenus(event.target.closest?.("details.menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = document.querySelector("details.menu[open]");
    if (!menu) return openNav(false);
    closeMenus();
    menu.querySelector("summary").focus();
  });

  // Dialogs: a button opens the one it names; a dialog in a fetched part opens itself.
  on("click", "[data-dialog]", (button) => document.getElementById(button.dataset.dialog)?.showModal());
  on("click", "[data-close]", (button) => button.closest("dialog")?.close());
  const openFetched = (scope) => {
    for (const dialog of scope.querySelectorAll("dialog[data-open]")) {
      if (!dialog.open) dialog.showModal();
      // What is shown once answered a form: a reload leads on to its page, and does not send the form again.
      if (dialog.dataset.next) history.replaceState(null, "", dialog.dataset.next);
    }
  };
  openFetched(document);
  document.addEventListener("htmx:afterSwap", (event) => openFetched(event.detail.target.parentElement || document));
  // A dialog that holds something shown once is not left by Escape, and leads on to the page it belongs to.
  document.addEventListener(
    "cancel",
    (event) => {
      if (event.target.dataset?.next) event.preventDefault();
    },
    true,
  );
  document.addEventListener(
    "close",
    (event) => {
      const next = event.target.dataset?.next;
      if (next) location.assign(next);
    },
    true,
  );

  // Jumping: any page by its name, a request by its id. Arrows walk through what fits, Enter opens the first.
  const jump = document.getElementById("jump");
  if (jump) {
    const text = document.getElementById("jump-text");
    const [request, none] = ["request", "none"].map((part) => jump.querySelector(`[data-jump-${part}]`));
    const links = [...jump.querySelectorAll("a")].filter((link) => link !== request);
    const fitting = () => [...jump.querySelectorAll("a:not([hidden])")];
    const show = () => {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const link of links) link.hidden = !words.every((word) => link.textContent.toLowerCase().includes(word));
      if (request) {
        request.hidden = !/[0-9a-f]{32}$/i.test(text.value.trim().replaceAll("-", ""));
        request.search = new URLSearchParams({ request_id: text.value.trim() });
      }
      none.hidden = fitting().length > 0;
    };
    const open = () => {
      if (document.querySelector("dialog:modal")) return;
      text.value = "";
      show();
      jump.showModal();
      text.focus();
    };
    on("click", "[data-jump]", open);
    text.addEventListener("input", show);
    jump.addEventListener("click", (event) => event.target === jump && jump.close());
    document.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
      event.preventDefault();
      open();
    });
    jump.addEventListener("keydown", (event) => {
      const found = fitting();
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const at = found.indexOf(document.activeElement) + step;
        (at < 0 ? text : found[Math.min(at, found.length - 1)])?.focus();
      } else if (event.key === "Enter" && event.target === text) {
        event.preventDefault();
        found[0]?.click();
      }
    });
    if (/Mac|iPhone|iPad/.test(navigator.platform)) document.querySelector("[data-jump-key]").textContent = "⌘ K";
  }

  // Copy buttons: the text of the element they name, or their own data-copy.
  on("click", "[data-copy], [data-copy-from]", async (button) => {
    const source = button.dataset.copyFrom && document.getElementById(button.dataset.copyFrom);
    const text = source ? source.textContent.trim() : button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // No clipboard on plain http: select the text, so that the reader's own copy works.
      if (source) getSelection().selectAllChildren(source);
      return;
    }
    const label = button.querySelector("[data-label]");
    const use = button.querySelector("use");
    const before = { label: label?.textContent, icon: use?.getAttribute("href") };
    if (button.classList.contains("is-copied")) return;
    button.classList.add("is-copied");
    if (label) label.textContent = gettext("Copied");
    use?.setAttribute("href", before.icon.replace(/#.*/, "#check"));
    setTimeout(() => {
      button.classList.remove("is-copied");
      if (label) label.textContent = before.label;
      use?.setAttribute("href", before.icon);
    }, 1600);
  });

  // Tabs: one panel of a group shown; arrow keys move.
  const choose = (tab) => {
    for (const other of tab.parentElement.querySelectorAll("[role=tab]")) {
      const isChosen = other === tab;
      other.setAttribute("aria-selected", String(isChosen));
      other.tabIndex = isChosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !isChosen;
    }
  };
  on("click", "[role=tab]", choose);
  on("keydown", "[role=tab]", (tab, event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tabs = [...tab.parentElement.querySelectorAll("[role=tab]")];
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    choose(next);
    next.focus();
  });

  // Parts of a form that belong to some choices only: what is not shown is not sent.
  const showParts = (select) => {
    const choice = select.value.split(":")[0];
    for (const part of select.form.querySelectorAll("[data-for]")) {
      part.hidden = !part.dataset.for.split(" ").includes(choice);
      for (const input of part.querySelectorAll("input, select, textarea")) input.disabled = part.hidden;
    }
  };
  on("change", "select[data-chooses]", showParts);
  for (const select of document.querySelectorAll("select[data-chooses]")) showParts(select);

  // A dialog that changes a row begins with the row's values: data-fill holds them by the names of the fields.
  on("click", "[data-fill]", (button) => {
    const form = document.getElementById(button.dataset.dialog).querySelector("form");
    form.reset();
    for (const [name, value] of Object.entries(JSON.parse(button.dataset.fill))) form.elements[name].value = value;
    for (const part of form.querySelectorAll("[data-initial]")) part.textContent = part.dataset.initial;
  });

  // Filters apply as they are changed.
  on("change", "form[data-submit-on-change]", (form) => form.requestSubmit());
  on("submit", "form[data-submit-on-change]", (form) => {
    for (const input of form.elements) if (input.name && !input.value) input.disabled = true;
  });

  // What scrolls sideways can be scrolled by keyboard: it takes the focus while it is wider than its place.
  const reach = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  const watchScrolling = (scope) => {
    for (const box of scope.querySelectorAll(".table-wrap, pre")) reach.observe(box);
  };
  watchScrolling(document);
  document.addEventListener("htmx:afterSwap", (event) => watchScrolling(event.detail.target.parentElement || document));

  // A form is sent once.
  const sending = (form, isSent) => {
    for (const button of form.elements) if (button.type === "submit") button.disabled = isSent;
  };
  on("submit", "form[method=post]", (form) => setTimeout(() => sending(form, true)));
  addEventListener("pageshow", (event) => {
    if (event.persisted) for (const form of document.querySelectorAll("form[method=post]")) sending(form, false);
  });
})();
