// The explorer: filters above, the tree with its figure beside it, what was chosen below. All of it follows one
// model, so that an answer of the kernel is one message, and the page is laid out and painted once.
export function explorer({ model, el }) {
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
  const ends = [bar({ model, el: filters }), tree({ model, el: rows }), plot({ model, el: figure })];
  return () => {
    for (const [name, show] of Object.entries(shown)) model.off(`change:${name}`, show);
    for (const end of ends) end();
  };
}
