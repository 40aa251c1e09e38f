// What was typed is not lost when a form cannot be taken: the session ended or the form expired while it was open, or
// the server failed. It is kept in this tab until its page is there again, and put back into the form.
(() => {
  "use strict";
  const KEY = "kept-form";
  const reader = document.body.dataset.reader;
  const isForm = (form) => form?.method === "post" && reader !== undefined && !("between" in document.body.dataset);
  const fields = (form) =>
    [...form.elements].filter(
      (field) => field.name && field.matches("input, select, textarea") && !["hidden", "password", "file", "submit"].includes(field.type),
    );
  const action = (form) => new URL(form.getAttribute("action") ?? "", location.href).pathname;
  const names = (form) => [...new Set(fields(form).map((field) => field.name))].join();

  const keep = (form, isLost) => {
    if (!isForm(form) || !fields(form).length) return;
    // What is not shown is disabled, and shown again by the choice above it.
    const values = fields(form).filter((field) => !field.disabled).map(({ name, type, value, checked }) => [name, type, value, checked]);
    sessionStorage.setItem(KEY, JSON.stringify({ reader, action: action(form), names: names(form), values, isLost }));
  };
  let typedIn = null;
  document.addEventListener("input", ({ target }) => (typedIn = target.form));
  document.addEventListener("submit", ({ target }) => keep(target, false));
  // A note offers to sign in or to load the page again, before the form was sent.
  document.addEventListener("click", ({ target }) => target.closest?.("[data-keep]") && keep(typedIn, true));

  const restore = ({ action: wanted, names: known, values }) => {
    const form = [...document.forms].find((each) => isForm(each) && action(each) === wanted && names(each) === known);
    if (!form) return;
    for (const [name, type, value, checked] of values) {
      const isChoice = type === "checkbox" || type === "radio";
      const field = fields(form).find((each) => each.name === name && (!isChoice || each.value === value));
      if (!field) continue;
      if (isChoice) field.checked = checked;
      else field.value = value;
      field.dispatchEvent(new Event("change", { bubbles: true }));
    }
    const note = document.createElement("div");
    note.className = "notice notice-warn";
    note.setAttribute("role", "status");
    note.textContent = gettext("This was not saved. What you typed is here again: look it over and send it.");
    form.prepend(note);
    for (const more of form.querySelectorAll("details")) more.open = true;
    const dialog = form.closest("dialog");
    if (dialog && !dialog.open) dialog.showModal();
    else form.scrollIntoView({ block: "center" });
  };

  const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  if (!kept) return;
  // Sign-in, and pages that say what went wrong, stand between a form and its page.
  if (reader === undefined || "between" in document.body.dataset) {
    sessionStorage.setItem(KEY, JSON.stringify({ ...kept, isLost: true }));
    return;
  }
  sessionStorage.removeItem(KEY);
  if (kept.isLost && kept.reader === reader) restore(kept);
})();
