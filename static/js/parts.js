// Parts of a page that are asked for: what cannot be had is said where it would stand. One that asks for itself again
// and again (hx-trigger="every …") does not go on when it is gone.
(() => {
  "use strict";
  // So many in a row, before a server that restarts becomes a message.
  const MOST_FAILURES = 3;
  const FOR_GOOD = [401, 403, 404, 410];
  const over = new Set();
  let failures = 0;
  const isPolled = (part) => /^every /.test(part.getAttribute("hx-trigger") ?? "");
  const note = document.createElement("div");
  note.className = "notice notice-warn";
  note.setAttribute("role", "status");

  const say = (place, text, link) => {
    const words = document.createElement("div");
    words.append(text, " ", link ?? "");
    note.replaceChildren(words);
    // A modal dialog would cover what stands outside of it.
    const dialog = document.querySelector("dialog:modal .dialog-body");
    if (dialog && !dialog.contains(place)) dialog.prepend(note);
    else place.before(note);
  };
  const link = (text, address) => {
    const made = document.createElement("a");
    made.textContent = text;
    made.href = address;
    made.dataset.keep = "";
    return made;
  };

  // By id: what takes the place of a part is the same part.
  const name = (part) => part.id || part.getAttribute("hx-get");
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (isPolled(event.detail.elt) && over.has(name(event.detail.elt))) event.preventDefault();
  });
  // What is the same stays: a press on it, what is selected in it and the focus are not lost.
  const answers = new Map();
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if (!isPolled(detail.target)) return;
    const part = name(detail.target);
    if (answers.get(part) === detail.serverResponse) detail.shouldSwap = false;
    answers.set(part, detail.serverResponse);
  });
  document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
    if (detail.target.isEqualNode(detail.fragment.firstElementChild)) detail.shouldSwap = false;
  });
  const failed = (event) => {
    const { elt: part, target, xhr } = event.detail;
    const isLive = isPolled(part);
    const place = isLive ? part : target;
    const here = location.pathname + location.search;
    if (isLive && FOR_GOOD.includes(xhr.status)) over.add(name(part));
    if (xhr.status === 401) {
      const address = `/accounts/login/?${new URLSearchParams({ next: here })}`;
      say(place, gettext("You are signed out; nothing here is kept up to date any more."), link(gettext("Sign in"), address));
    } else if (FOR_GOOD.includes(xhr.status)) {
      say(place, gettext("This is gone, or you may no longer see it; what is shown is old."), link(gettext("Reload the page"), here));
    } else if (!isLive) {
      say(place, gettext("The server could not do this. Try again."));
    } else if (++failures >= MOST_FAILURES) {
      say(place, gettext("The server does not answer; what is shown may be old. Trying again."));
    }
  };
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    failures = 0;
    if (!over.size) note.remove();
  });
})();
