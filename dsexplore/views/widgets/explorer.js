// The explorer: filters above, the tree with its figure beside it, tables of what is chosen below. All follow one
// model, so that a reply of the kernel is one message, and the page is laid out and painted once.
export function explorer({ model: plain, el }) {
  const model = promptModel(plain);
  el.classList.add("dsx-explorer");
  const headline = element("div", "dsx-headline"), filters = element("div"), status = element("div", "dsx-status"), details = element("div", "dsx-details");
  const both = element("div", "dsx-both"), left = element("div", "dsx-left"), right = element("div", "dsx-right");
  const rows = element("div"), figure = element("div"), kind = choice("figure", model.get("kinds"));
  kind.addEventListener("change", () => {
    model.set("kind", kind.value);
    model.save_changes();
  });
  left.append(rows);
  right.append(kind, figure);
  both.append(left, right);
  el.append(headline, filters, status, both, details);
  const parts = [
    // The figure first, while the page is laid out: plotly reads the size of its box.
    plot({ model, el: figure }),
    tree({ model, el: rows }),
    bar({ model: plain, el: filters }),
    part("kind", () => { kind.value = model.get("kind"); }),
    // HTML made in Python, where every name in it was escaped.
    part("headline", () => rewrite(headline, model.get("headline"))),
    part("status", () => rewrite(status, model.get("status"))),
    part("details", () => rewrite(details, model.get("details"))),
  ];
  // A row of the table of causes selects its module, as a mark of the figure does; the keys then go to the tree.
  function pick(event) {
    const row = event.target.closest("[data-cause]");
    if (!row || (event.type === "keydown" && event.key !== "Enter")) return;
    event.preventDefault();
    model.send({ type: "click", kind: "cause", index: [Number(row.dataset.cause)] });
    rows.querySelector(".dsx-port").focus({ preventScroll: true });
  }
  headline.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-sentence]");
    if (!button) return;
    model.send({ type: "sentence", index: Number(button.dataset.sentence) });
    rows.querySelector(".dsx-port").focus({ preventScroll: true });
  });
  details.addEventListener("click", pick);
  details.addEventListener("keydown", pick);
  return follow(model, parts);
}

function part(name, show) {
  show();
  return { names: [name], show, end() {} };
}

// Replaces the HTML of an element, and keeps the elements that stay: the browser styles and lays out only new ones.
export function rewrite(place, html) {
  const made = document.createElement("template");
  made.innerHTML = html;
  liken(place, made.content);
}

function liken(have, want) {
  const old = [...have.childNodes], wanted = [...want.childNodes];
  wanted.forEach((node, i) => {
    if (!old[i]) have.append(node);
    else if (old[i].nodeName !== node.nodeName) old[i].replaceWith(node);
    else if (node.nodeType !== Node.ELEMENT_NODE) { if (old[i].data !== node.data) old[i].data = node.data; }
    else {
      for (const name of old[i].getAttributeNames()) if (!node.hasAttribute(name)) old[i].removeAttribute(name);
      for (const name of node.getAttributeNames()) put(old[i], name, node.getAttribute(name));
      liken(old[i], node);
    }
  });
  for (const node of old.slice(wanted.length)) node.remove();
}

// JupyterLab's server leaves Nagle's algorithm on: it holds back a short reply until the browser has acknowledged the
// message before ("busy"), and a browser with nothing to send acknowledges up to 40 ms late. So this model sends a
// message when it sees "busy". Replies to a filter are long, and are not held back.
export function promptModel(model) {
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
