// The explorer: filters above, the tree with its figure beside it, what was chosen below. All of it follows one
// model, so that an answer of the kernel is one message, and the page is laid out and painted once.
export function explorer({ model: plain, el }) {
  const model = hastened(plain);
  el.classList.add("dsx-explorer");
  const filters = element("div"), status = element("div", "dsx-status"), details = element("div", "dsx-details");
  const both = element("div", "dsx-both"), left = element("div", "dsx-left"), right = element("div", "dsx-right");
  const rows = element("div"), figure = element("div"), kind = choice("figure", model.get("kinds"));
  kind.addEventListener("change", () => {
    model.set("kind", kind.value);
    model.save_changes();
  });
  left.append(rows);
  right.append(kind, figure);
  both.append(left, right);
  el.append(filters, status, both, details);
  const shown = {
    // Both are HTML made in Python, where every name in it was escaped.
    status: () => { status.innerHTML = model.get("status"); },
    details: () => { details.innerHTML = model.get("details"); },
    kind: () => { kind.value = model.get("kind"); },
  };
  for (const [name, show] of Object.entries(shown)) {
    model.on(`change:${name}`, show);
    show();
  }
  // A row of the table of causes selects its module, as a mark of the figure does; the keys then go to the tree.
  function pick(event) {
    const row = event.target.closest("[data-cause]");
    if (!row || (event.type === "keydown" && event.key !== "Enter")) return;
    event.preventDefault();
    model.send({ type: "click", kind: "cause", index: [Number(row.dataset.cause)] });
    rows.querySelector(".dsx-port").focus({ preventScroll: true });
  }
  details.addEventListener("click", pick);
  details.addEventListener("keydown", pick);
  const ends = [bar({ model: plain, el: filters }), tree({ model, el: rows }), plot({ model, el: figure })];
  return () => {
    for (const [name, show] of Object.entries(shown)) model.off(`change:${name}`, show);
    for (const end of ends) end();
  };
}

// A server that leaves Nagle's algorithm on, as JupyterLab's does, holds a short answer back until the browser has
// acknowledged the message before it ("busy"), and a browser that has nothing to say does so up to 40 ms late.
// So one that waits for a short answer says something. (A filter's answer is long.)
export function hastened(model) {
  const status = ({ content }) => { if (content.execution_state === "busy") model.send({ type: "waiting" }); };
  return {
    get: (name) => model.get(name),
    set: (name, value) => model.set(name, value),
    on: (name, listener) => model.on(name, listener),
    off: (name, listener) => model.off(name, listener),
    save_changes: () => model.save_changes({ iopub: { status } }),
    send: (content) => model.send(content, { iopub: { status } }),
  };
}
