// The page of an explorer: the search and filters above, the tree with its figure beside it, then the tabs, and tables of what
// is selected below. All follow one model, so that a reply of the kernel is one message, and the page is laid out and
// painted once.
function assemble({ model, store, el, figure }) {
  el.classList.add("dsx-explorer");
  const headline = element("div", "dsx-headline"), top = element("div", "dsx-top"), filters = element("div"), status = element("div", "dsx-status"), details = element("div", "dsx-details");
  const both = element("div", "dsx-both"), left = element("div", "dsx-left"), rows = element("div");
  status.setAttribute("role", "status");
  left.append(rows);
  both.append(left);
  const drawn = [];
  if (figure) {
    const right = element("div", "dsx-right"), place = element("div"), kind = choice("figure", model.get("kinds"));
    place.dataset.follows = kind.dataset.asks = "";
    kind.addEventListener("change", () => {
      model.set("kind", kind.value);
      model.save_changes();
    });
    right.append(kind, place);
    both.append(right);
    // The figure first, while the page is laid out: plotly reads the size of its box.
    const first = figure({ model, el: place });
    // Whoever reaches for the list of figures may choose one that plotly draws.
    for (const type of ["pointerenter", "focus"]) kind.addEventListener(type, first.prepare, { once: true });
    drawn.push(first, part("kind", () => hold(kind, "value", model.get("kind"))));
  }
  const tabbed = element("div"), lanes = element("div", "dsx-panel"), panel = element("div", "dsx-panel");
  const arranged = element("div"), laid = element("div"), shading = element("div"), drawing = element("div");
  lanes.append(arranged, laid);
  panel.append(shading, drawing);
  const shade = choice("shade of the map", model.get("shades") || []);
  shade.title = "by what ranks and links are shaded: bytes of the kind chosen above, or seconds in which their collectives ran";
  shade.dataset.asks = "";
  shade.addEventListener("change", () => {
    model.set("shade", shade.value);
    model.save_changes();
  });
  shading.append(shade);
  const line = pythonLine(model), keys = keyHelp();
  el.append(headline, top, filters, status, line.place, both, tabbed, lanes, ...(figure ? [panel] : []), details, ...(figure ? [keys] : []));
  const arrange = choice("lanes", (model.get("timeline").kinds || []).map((kind) => [kind, `lanes: ${kind}`]));
  arrange.hidden = !arrange.length;
  arrange.addEventListener("change", () => model.send({ type: "lanes", kind: arrange.value }));
  arranged.append(arrange);
  arrange.dataset.asks = "";
  for (const each of [status, line.place, lanes, panel, details]) each.dataset.follows = "";
  const arranging = () => {
    const { kinds = [], kind = "" } = model.get("timeline");
    if (arrange.length !== kinds.length) {
      arrange.replaceChildren(...kinds.map((each) => Object.assign(element("option", "", `lanes: ${each}`), { value: each })));
    }
    arrange.hidden = !kinds.length;
    hold(arrange, "value", kind);
  };
  const toTree = () => rows.querySelector(".dsx-port").focus({ preventScroll: true });
  const modules = tree({ model, el: rows, alone: false });
  const visits = figure ? travel(model, top) : null;
  const finding = search({ model, store, el: top, modules });
  const parts = [
    ...drawn,
    modules,
    finding,
    bar({ model: store, el: filters, cleared: () => { finding.clear(); modules.clear(); } }),
    ...(visits ? [visits] : []),
    tabs({ model, el: tabbed, panels: [[["timeline"], lanes], [["map", "findings", "parameters", "prediction"], panel]] }),
    part("timeline", arranging),
    // HTML made in Python, where every name in it was escaped.
    part("headline", () => rewrite(headline, model.get("headline"))),
    part("status", () => rewrite(status, model.get("status"))),
    line,
    part("shade", () => hold(shade, "value", model.get("shade"))),
    part("tab", () => { shading.hidden = model.get("tab") !== "map" || shade.length < 2; }),
    part("panel", () => rewrite(drawing, model.get("panel"))),
    part("details", () => rewrite(details, model.get("details"))),
    // After what changes elements: text on a canvas has the browser compute the styles of the page first.
    timeline({ model, el: laid }),
    settled(el),
  ];
  // What a click, or Enter, on an element with one of these attributes asks for.
  const ASKED = {
    cause: (row) => { model.send({ type: "click", kind: "cause", index: [Number(row)] }); toTree(); },
    sentence: (row) => { model.send({ type: "sentence", index: Number(row) }); toTree(); },
    finding: (row) => model.send({ type: "finding", index: Number(row) }),
    parameter: (name) => model.send({ type: "parameter", name }),
    drop: (name) => model.send({ type: "drop", part: name }),
    cell: (place) => model.send({ type: "cell", place }),
    link: (row) => model.send({ type: "link", index: Number(row) }),
  };
  const asking = Object.keys(ASKED).map((name) => `[data-${name}]`).join();
  function ask(event) {
    const target = event.target.closest(asking);
    if (!target || (event.type === "keydown" && (event.key !== "Enter" || target.localName === "button"))) return;
    event.preventDefault();
    const name = Object.keys(ASKED).find((each) => each in target.dataset);
    ASKED[name](target.dataset[name]);
  }
  for (const place of [headline, status, details, drawing]) {
    place.addEventListener("click", ask);
    place.addEventListener("keydown", ask);
  }
  drawing.addEventListener("keydown", roam);
  drawing.addEventListener("change", ({ target }) => {
    // A rank that is chosen in the picture of a parameter's shards, or a cluster to predict for.
    if (target.matches(".ranks input")) model.send({ type: "rank", rank: Number(target.parentNode.textContent.replace(/\D/g, "")) });
    if (target.matches("[data-hardware]")) model.send({ type: "hardware", name: target.value });
  });
  const KEYS = { "/": finding.focus, p: line.copy, ...(visits ? { "[": visits.back, "]": visits.forward } : {}) };
  el.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]),select")) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  return parts;
}

// Back and forward among what was selected.
function travel(model, el) {
  const [back, forward] = [["‹", "back", "["], ["›", "forward", "]"]].map(([sign, name, key]) => {
    const button = element("button", "dsx-go", sign);
    button.setAttribute("aria-label", name);
    button.title = `${name} to what was selected ${name === "back" ? "before" : "after"} (key ${key})`;
    return button;
  });
  const go = (by) => () => { if (model.get("visits")[by < 0 ? 0 : 1]) model.send({ type: "go", by }); };
  back.addEventListener("click", go(-1));
  forward.addEventListener("click", go(1));
  el.append(back, forward);
  return { ...part("visits", () => {
    // No `disabled`: a button that loses its use keeps the focus.
    [back, forward].forEach((button, i) => put(button, "aria-disabled", !model.get("visits")[i]));
  }), back: go(-1), forward: go(1) };
}

// The line of Python that finds what is selected, and the button that copies it.
function pythonLine(model) {
  const place = element("div", "dsx-line"), code = element("code"), copy = element("button", "", "copy"), told = element("span", "dsx-dim");
  copy.setAttribute("aria-label", "copy this line of Python");
  copy.title = "copy the line of Python that finds what is selected (key p)";
  told.setAttribute("role", "status");
  place.append(code, copy, told);
  const copied = () => {
    if (!model.get("line")) return;
    copyText(model.get("line"), place);
    write(told, "copied");
  };
  copy.addEventListener("click", copied);
  return { ...part("line", () => {
    place.hidden = !model.get("line");
    write(code, model.get("line") || "");
    write(told, "");
  }), place, copy: copied };
}

function keyHelp() {
  const help = element("details", "dsx-keys");
  const keys = [["/", "search"], ["[ ]", "back, forward"], ["p", "copy the line of Python"], ["arrows", "in the tree, the tabs, the timeline and the map"],
    ["Enter", "open, or select what is marked"], ["Shift + arrows", "select a range of the timeline"], ["c", "copy the names of the row's modules"], ["Escape", "clear the selection"]];
  help.append(element("summary", "", "Keys"), ...keys.flatMap(([key, what]) => [element("kbd", "", key), ` ${what}; `]));
  return help;
}

// Arrows go from rank to rank of the map: one stop of Tab for all of them.
function roam(event) {
  const cell = event.target.closest("[data-cell]");
  const by = { ArrowRight: 1, ArrowDown: 4, ArrowLeft: -1, ArrowUp: -4 }[event.key];
  if (!cell || by === undefined) return;
  event.preventDefault();
  const cells = [...event.currentTarget.querySelectorAll("[data-cell]")], to = cells[cells.indexOf(cell) + by];
  if (!to) return;
  cell.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

function part(name, show) {
  show();
  return { names: [name], show, end() {} };
}

// The last part: has the browser lay out the page now, while it waits for the screen's next frame, and not within it.
function settled(el) {
  return { names: ["values", "spec", "timeline", "panel", "details", "status"], show: () => void el.offsetHeight, end() {} };
}

// Replaces the HTML of an element, and keeps the elements that stay: the browser styles and lays out only new ones.
export function rewrite(place, html) {
  const made = document.createElement("template");
  made.innerHTML = html;
  liken(place, made.content);
}

function liken(have, want) {
  let old = have.firstChild;
  for (let node = want.firstChild, next; node; node = next) {
    next = node.nextSibling;
    const after = old && old.nextSibling;
    if (!old) have.append(node);
    else if (old.nodeName !== node.nodeName) old.replaceWith(node);
    else if (node.nodeType !== Node.ELEMENT_NODE) { if (old.data !== node.data) old.data = node.data; }
    else if (!old.isEqualNode(node)) {
      likenAttributes(old, node.attributes);
      liken(old, node);
    }
    old = after;
  }
  while (old) {
    const after = old.nextSibling;
    old.remove();
    old = after;
  }
}

function likenAttributes(old, wanted) {
  for (const { name, value } of wanted) put(old, name, value);
  if (old.attributes.length === wanted.length) return;
  for (const name of old.getAttributeNames()) if (!wanted.getNamedItem(name)) old.removeAttribute(name);
}
