// A virtualised treegrid. Names are data: they reach the page as text nodes only.
const ROW = 22, NAME = 222, CELL = 70; // pixels; NAME holds the name column, the padding and a scroll bar
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function formatBytes(count) {
  let size = count, unit = 0;
  while (Math.abs(size) >= 1023.95 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${Number.isInteger(size) || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

function view(model, key, Type) {
  const raw = model.get(key);
  if (!raw || !raw.byteLength) return new Type(0);
  return new Type(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength));
}

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function put(target, name, value) {
  if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// The rows themselves: what is open, hidden, matching, in which order.
export class Rows {
  constructor(labels, structure, folded, folding) {
    this.labels = labels;
    this.count = labels.length;
    this.structure = structure;
    this.folded = folded;
    this.folding = folding;
    this.fill([], new Float32Array(0));
    this.open = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i++) this.open[i] = this.depth(i) < 3 ? 1 : 0;
    this.sort = null;
    this.query = "";
    this.update();
  }
  fill(columns, values) { this.columns = columns; this.values = values; }
  parent(i) { return this.structure[4 * i]; }
  end(i) { return this.structure[4 * i + 1]; }
  type(i) { return this.structure[4 * i + 2]; }
  hidden(i) { return this.folding && this.structure[4 * i + 3] === 1; }
  leaf(i) { return this.end(i) === i + 1; }
  depth(i) { let d = 0; for (let p = this.parent(i); p >= 0; p = this.parent(p)) d++; return d; }
  value(column, i) { return this.values[this.columns[column] * this.count + i] || 0; }
  fold(i) { return this.folding ? this.folded[i] : undefined; }
  label(i) { return this.fold(i) ? this.fold(i)[0] : this.labels[i]; }
  path(i, label) {
    const parts = [];
    for (let at = i; at >= 0; at = this.parent(at)) parts.unshift(label(at));
    return parts.join(".");
  }
  // What the row is called: one name, or "Net.layers.[0–30].up" for several modules.
  title(i) { return this.path(i, (at) => this.label(at)); }
  // The fully qualified names of all modules that the row stands for.
  names(i) {
    let found = [i];
    for (let at = i; at >= 0; at = this.parent(at)) {
      const same = this.fold(at);
      if (same) found = found.flatMap((row) => same[1].map((other) => row - at + other));
    }
    return found.sort((a, b) => a - b).map((row) => this.path(row, (at) => this.labels[at]));
  }
  children(i) {
    const found = [];
    const stop = i < 0 ? this.count : this.end(i);
    for (let at = i + 1; at < stop; at = this.end(at)) if (!this.hidden(at) && (!this.match || this.match[at])) found.push(at);
    if (this.sort) {
      const { column, down } = this.sort;
      found.sort((a, b) => (down ? 1 : -1) * (this.value(column, b) - this.value(column, a)) || a - b);
    }
    return found;
  }
  update() {
    this.match = this.query ? this.matches(this.query.toLowerCase()) : null;
    const shown = [];
    const stack = this.children(-1).reverse();
    while (stack.length) {
      const row = stack.pop();
      shown.push(row);
      if (!this.leaf(row) && (this.open[row] || this.match)) {
        const below = this.children(row);
        for (let k = below.length - 1; k >= 0; k--) stack.push(below[k]);
      }
    }
    this.shown = shown;
  }
  matches(query) {
    const lower = this.labels.map((label) => label.toLowerCase());
    const names = new Array(this.count);
    const match = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i++) {
      const parent = this.parent(i);
      names[i] = parent < 0 ? lower[i] : `${names[parent]}.${lower[i]}`;
      if (names[i].includes(query)) match[i] = 1;
    }
    for (let i = this.count - 1; i >= 0; i--) if (match[i] && this.parent(i) >= 0) match[this.parent(i)] = 1;
    return match;
  }
  reveal(i) {
    for (let p = this.parent(i); p >= 0; p = this.parent(p)) this.open[p] = 1;
    if (this.match && !this.match[i]) this.query = "";
    this.update();
    return this.shown.indexOf(i);
  }
}

function copyText(text, near) {
  const fallback = () => {
    const area = element("textarea");
    area.value = text;
    near.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).catch(fallback);
  else fallback();
}

export function tree({ model, el }) {
  const rows = new Rows(model.get("labels"), view(model, "structure", Int32Array), model.get("folded"), model.get("folding"));
  const titles = model.get("titles"), types = model.get("types"), notes = model.get("notes");
  const fill = () => rows.fill(model.get("columns"), view(model, "values", Float32Array));
  fill();
  const uid = `dsx-tree-${model.model_id || "page"}`;
  const twins = hideTwin(el, model.get("twin"));

  el.classList.add("dsx-tree");
  const bar = element("div", "dsx-bar");
  const filter = element("input", "dsx-filter");
  filter.type = "search";
  filter.placeholder = "filter modules by name";
  filter.setAttribute("aria-label", "filter modules by name");
  filter.title = "show only modules with this in their name, and what they are in";
  const fold = element("button", "dsx-fold"), copy = element("button", "dsx-copy", "copy name");
  fold.title = "show modules that are the same as one row, or each by itself";
  copy.title = "copy the full names of all modules that the selected row stands for (key c)";
  const count = element("span", "dsx-count");
  count.setAttribute("aria-live", "polite");
  const wide = element("button", "dsx-wide");
  wide.setAttribute("aria-pressed", false);
  bar.append(filter, fold, copy, wide, count);
  const port = element("div", "dsx-port");
  port.style.maxHeight = `${model.get("height")}px`;
  port.tabIndex = 0;
  port.setAttribute("role", "treegrid");
  port.setAttribute("aria-label", "modules");
  const head = element("div", "dsx-row dsx-head"), space = element("div", "dsx-space"), body = element("div", "dsx-body");
  head.setAttribute("role", "row");
  const tall = model.get("height");
  let columns = titles.length, all = false, top = 0, drawn = new Map(), known = model.get("selected");
  space.append(body);
  port.append(head, space);
  el.append(bar, port);

  head.append(element("span", "dsx-name", "module"));
  titles.forEach(([title], column) => {
    const button = element("button", "dsx-cell", title);
    button.title = `sort by ${title}`;
    button.addEventListener("click", () => {
      rows.sort = rows.sort && rows.sort.column === column ? (rows.sort.down ? { column, down: false } : null) : { column, down: true };
      [...head.querySelectorAll("button")].forEach((b, i) => {
        const on = rows.sort && rows.sort.column === i;
        b.textContent = titles[i][0] + (on ? (rows.sort.down ? " ▾" : " ▴") : "");
        b.setAttribute("aria-sort", on ? (rows.sort.down ? "descending" : "ascending") : "none");
      });
      refresh();
    });
    head.append(button);
  });

  // As many columns as fit; the others come with a button, and a scroll bar.
  function fit() {
    const room = Math.max(1, Math.floor((port.clientWidth - NAME) / CELL));
    columns = all ? titles.length : Math.min(titles.length, room);
    const width = NAME + columns * CELL;
    for (const part of [head, space, body]) part.style.minWidth = all ? `${width}px` : "0";
    [...head.querySelectorAll("button")].forEach((button, i) => { button.hidden = i >= columns; });
    wide.hidden = !all && columns === titles.length;
    wide.textContent = all ? "fewer columns" : `${titles.length - columns} more columns`;
    wide.setAttribute("aria-pressed", all);
  }
  // Where the rows are scrolled to is kept, because asking after a change has the browser lay out at once.
  function paint() {
    const most = Math.ceil(tall / ROW);
    const first = Math.max(0, Math.min(Math.floor(top / ROW), rows.shown.length - most) - 2);
    const last = Math.min(rows.shown.length, first + most + 4);
    const kept = new Map();
    for (let r = first; r < last; r++) {
      const i = rows.shown[r], key = `${i} ${columns} ${rows.folding}`;
      kept.set(key, drawn.get(key) || line(i));
      update(kept.get(key), i, r);
    }
    for (const [key, { row }] of drawn) if (!kept.has(key)) row.remove();
    let at = body.firstChild;
    for (const { row } of kept.values()) {
      if (row === at) at = at.nextSibling;
      else body.insertBefore(row, at);
    }
    drawn = kept;
    body.style.transform = `translateY(${first * ROW}px)`;
    const selected = model.get("selected");
    if (selected >= 0) put(port, "aria-activedescendant", `${uid}-${selected}`);
  }
  // What a row shows whatever happens; see update for the rest.
  function line(i) {
    const row = element("div", "dsx-row"), name = element("span", "dsx-name"), twist = element("span", "dsx-twist");
    row.id = `${uid}-${i}`;
    row.dataset.row = i;
    row.setAttribute("role", "row");
    row.setAttribute("aria-level", rows.depth(i) + 1);
    name.setAttribute("role", "rowheader");
    name.style.paddingLeft = `${4 + rows.depth(i) * 14}px`;
    name.title = [rows.title(i).slice(0, 2000), types[rows.type(i)], notes[i]].filter(Boolean).join("\n");
    name.append(twist, element("bdi", "", rows.label(i)));
    const many = rows.fold(i), type = types[rows.type(i)];
    if (many) name.append(element("span", "dsx-times", `×${many[1].length}`));
    if (type && type !== rows.labels[i]) name.append(element("bdi", "dsx-dim dsx-type", type));
    if (notes[i]) name.append(element("bdi", "dsx-dim dsx-note", notes[i]));
    const cells = titles.slice(0, columns).map(() => element("span", "dsx-cell"));
    for (const cell of cells) cell.setAttribute("role", "gridcell");
    row.append(name, ...cells);
    return { row, twist, cells };
  }
  // A row that stays in sight keeps its elements, and only what differs in them is touched.
  function update({ row, twist, cells }, i, r) {
    const opened = Boolean(rows.open[i] || rows.match), selected = model.get("selected") === i;
    put(row, "aria-rowindex", r + 2);
    put(row, "aria-selected", selected);
    row.classList.toggle("dsx-selected", selected);
    if (!rows.leaf(i)) put(row, "aria-expanded", opened);
    write(twist, rows.leaf(i) ? "" : opened ? "▾" : "▸");
    cells.forEach((cell, column) => {
      const value = rows.value(column, i), unit = titles[column][1];
      cell.classList.toggle("dsx-dim", !value);
      write(cell, value ? (unit === "bytes" ? formatBytes(value) : value.toLocaleString("en")) : "–");
    });
  }
  function refresh() {
    rows.update();
    space.style.height = `${rows.shown.length * ROW}px`;
    count.textContent = `${rows.shown.length.toLocaleString("en")} of ${rows.count.toLocaleString("en")} modules`;
    port.setAttribute("aria-rowcount", rows.shown.length + 1);
    fold.textContent = rows.folding ? "unfold ×N" : "fold ×N";
    fold.setAttribute("aria-pressed", rows.folding);
    paint();
  }
  function show(position) {
    const at = position * ROW, room = port.clientHeight;
    if (at < port.scrollTop) port.scrollTop = at;
    else if (at + ROW * 2 > port.scrollTop + room) port.scrollTop = at + 2 * ROW - room;
    top = port.scrollTop;
  }
  function select(i) {
    if (i === model.get("selected")) model.send({ type: "again" });
    else {
      known = i;
      model.set("selected", i);
      model.save_changes();
    }
    show(rows.shown.indexOf(i));
    paint();
  }
  function toggle(i, open = !rows.open[i]) {
    rows.open[i] = open ? 1 : 0;
    refresh();
  }
  function keys(event) {
    const at = rows.shown.indexOf(model.get("selected")), i = rows.shown[at];
    const page = Math.max(1, Math.floor(port.clientHeight / ROW) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.shown.length - 1, PageDown: at + page, PageUp: at - page }[event.key];
    if (to !== undefined) select(rows.shown[Math.min(Math.max(to, 0), rows.shown.length - 1)]);
    else if (at < 0) return;
    else if (event.key === "ArrowRight") rows.leaf(i) || rows.open[i] ? rows.leaf(i) || select(rows.shown[at + 1]) : toggle(i, true);
    else if (event.key === "ArrowLeft") !rows.leaf(i) && rows.open[i] ? toggle(i, false) : rows.parent(i) >= 0 && select(rows.parent(i));
    else if (event.key === "Enter" || event.key === " ") rows.leaf(i) || toggle(i);
    else if (event.key === "Escape") { model.set("selected", -1); model.save_changes(); paint(); }
    else if (event.key === "c" && !event.altKey) copyText(rows.names(i).join("\n"), el);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  // Plain keys typed in the explorer are its own: JupyterLab would take arrows for steps from cell to cell.
  function ownKeys(event) {
    if (!(el.closest(".dsx-explorer") || el).contains(event.target)) return;
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", plain);
  }
  port.addEventListener("keydown", keys);
  port.addEventListener("scroll", () => {
    if (top === port.scrollTop) return;
    top = port.scrollTop;
    requestAnimationFrame(paint);
  });
  body.addEventListener("click", (event) => {
    const row = event.target.closest(".dsx-row");
    if (!row) return;
    const i = Number(row.dataset.row);
    if (event.target.classList.contains("dsx-twist") && !rows.leaf(i)) toggle(i);
    else select(i);
    port.focus({ preventScroll: true });
  });
  body.addEventListener("dblclick", (event) => {
    const row = event.target.closest(".dsx-row");
    if (row && !rows.leaf(Number(row.dataset.row))) toggle(Number(row.dataset.row));
  });
  filter.addEventListener("input", () => { rows.query = filter.value; port.scrollTop = top = 0; refresh(); });
  for (const type of ["keydown", "keyup", "keypress"]) filter.addEventListener(type, (event) => event.stopPropagation());
  copy.addEventListener("click", () => { const i = model.get("selected"); if (i >= 0) copyText(rows.names(i).join("\n"), el); });
  fold.addEventListener("click", () => { model.set("folding", !rows.folding); model.save_changes(); });
  function renew(changed) {
    const selected = model.get("selected"), moved = selected !== known;
    known = selected;
    if (changed.has("values") || changed.has("columns")) fill();
    rows.folding = model.get("folding");
    const at = moved && selected >= 0 ? rows.reveal(selected) : -1;
    if (moved) filter.value = rows.query;
    if (rows.sort || changed.has("folding") || moved) refresh();
    else paint();
    if (at >= 0) { show(at); paint(); }
  }
  wide.addEventListener("click", () => { all = !all; fit(); paint(); });
  const seen = new ResizeObserver(() => { fit(); paint(); });
  seen.observe(port);
  fit();
  refresh();
  requestAnimationFrame(() => requestAnimationFrame(() => { el.dataset.ready = "1"; }));
  window.addEventListener("keydown", ownKeys, true);
  function end() {
    window.removeEventListener("keydown", ownKeys, true);
    seen.disconnect();
    for (const twin of twins) twin.style.display = "";
  }
  return { names: ["values", "columns", "folding", "selected"], show: renew, end };
}

// The static view stands in the saved notebook; beside the live one it would be a repetition.
function hideTwin(el, name) {
  if (!name) return [];
  const area = el.closest(".jp-OutputArea, .output_area, .cell-output") || document;
  const found = [...area.getElementsByClassName(name)].map((twin) => twin.closest(".jp-OutputArea-child") || twin);
  for (const twin of found) twin.style.display = "none";
  return found;
}
