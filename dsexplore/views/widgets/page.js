// The page of an explorer: filters above, the tree with its figure beside it, then the timeline and the world map, and
// tables of what is chosen below. All follow one model, so that a reply of the kernel is one message, and the page is laid
// out and painted once.
function assemble({ model, store, el, figure }) {
  el.classList.add("dsx-explorer");
  const headline = element("div", "dsx-headline"), filters = element("div"), status = element("div", "dsx-status"), details = element("div", "dsx-details");
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
  const lanes = folding(model, "timeline", "Timeline"), map = folding(model, "map", "World map");
  const arranged = element("div"), laid = element("div"), drawing = element("div");
  lanes.append(arranged, laid);
  const shade = choice("shade of the map", model.get("shades") || []);
  shade.hidden = shade.length < 2;
  shade.title = "by what ranks and links are shaded: bytes of the kind chosen above, or seconds in which their collectives ran";
  shade.dataset.asks = "";
  shade.addEventListener("change", () => {
    model.set("shade", shade.value);
    model.save_changes();
  });
  const shading = element("div");
  shading.append(shade);
  map.append(shading, drawing);
  el.append(headline, filters, status, both, lanes, ...(figure ? [map] : []), details);
  const arrange = choice("lanes", (model.get("timeline").kinds || []).map((kind) => [kind, `lanes: ${kind}`]));
  arrange.hidden = !arrange.length;
  arrange.addEventListener("change", () => model.send({ type: "lanes", kind: arrange.value }));
  arranged.append(arrange);
  arrange.dataset.asks = "";
  for (const each of [status, lanes, map, details]) each.dataset.follows = "";
  const arranging = () => {
    const { kinds = [], kind = "" } = model.get("timeline");
    if (arrange.length !== kinds.length) {
      arrange.replaceChildren(...kinds.map((each) => Object.assign(element("option", "", `lanes: ${each}`), { value: each })));
    }
    arrange.hidden = !kinds.length;
    hold(arrange, "value", kind);
  };
  const toTree = () => rows.querySelector(".dsx-port").focus({ preventScroll: true });
  const modules = tree({ model, el: rows });
  const parts = [
    ...drawn,
    modules,
    bar({ model: store, el: filters, clearTree: modules.clear }),
    part("timeline", arranging),
    // HTML made in Python, where every name in it was escaped.
    part("headline", () => rewrite(headline, model.get("headline"))),
    part("status", () => rewrite(status, model.get("status"))),
    part("shade", () => hold(shade, "value", model.get("shade"))),
    part("map", () => rewrite(drawing, model.get("map"))),
    part("details", () => rewrite(details, model.get("details"))),
    // After what changes elements: text on a canvas has the browser compute the styles of the page first.
    timeline({ model, el: laid }),
    part("opened", () => {
      const open = model.get("opened");
      for (const [name, place] of [["timeline", lanes], ["map", map]]) if (place.open !== open.includes(name)) place.open = open.includes(name);
    }),
    settled(el),
  ];
  // What a click, or Enter, on an element with one of these attributes asks for.
  const ASKED = {
    cause: (row) => { model.send({ type: "click", kind: "cause", index: [Number(row)] }); toTree(); },
    sentence: (row) => { model.send({ type: "sentence", index: Number(row) }); toTree(); },
    parameter: (name) => model.send({ type: "parameter", name }),
    drop: (name) => model.send({ type: "drop", part: name }),
    cell: (place) => model.send({ type: "cell", place }),
    link: (row) => model.send({ type: "link", index: Number(row) }),
  };
  function ask(event) {
    const target = event.target.closest("[data-cause],[data-sentence],[data-parameter],[data-drop],[data-cell],[data-link]");
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
  // A rank that is chosen in the picture of a parameter's shards.
  details.addEventListener("change", ({ target }) => {
    if (target.matches(".ranks input")) model.send({ type: "rank", rank: Number(target.parentNode.textContent.replace(/\D/g, "")) });
  });
  return parts;
}

// A part that opens and closes; the kernel makes only what is open.
function folding(model, name, title) {
  const place = element("details", "dsx-fold-part"), summary = element("summary", "", title);
  place.open = model.get("opened").includes(name);
  place.append(summary);
  place.addEventListener("toggle", () => {
    const open = model.get("opened").filter((each) => each !== name);
    if (place.open) open.push(name);
    if (open.length === model.get("opened").length && open.every((each) => model.get("opened").includes(each))) return;
    model.set("opened", open);
    model.save_changes();
  });
  return place;
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
  return { names: ["values", "spec", "timeline", "map", "details", "status"], show: () => void el.offsetHeight, end() {} };
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
