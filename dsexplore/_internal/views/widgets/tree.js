// A virtualized treegrid: any number of rows, of which only those in sight are in the page.
// Pixels where text has 12 of them; NAME holds the name column, the padding and a scroll bar.
const ROW = 22, NAME = 222, CELL = 70, TEXT = 12;
// Characters of a name that fills its column.
const LONG = 30;

const counts = new Intl.NumberFormat("en");
const WRITTEN = { bytes: formatSum, seconds: formatSeconds, count: (value) => counts.format(value) };

// The title of a narrow column: a sign stands for the word, which its explanation has.
const headed = (title) => title.replace(/^(.*) \(pred\.\)$/, "≈$1");

// A tree that is alone has a box of its own to find modules; in a page the page's search narrows it.
export function tree({ model, el, alone = true }) {
  const made = new Tree(model, el, alone);
  return { names: ["values", "columns", "folding", "selected"], show: (changed) => made.renew(changed), end: () => made.end(), clear: () => made.clear(),
    find: (text) => made.find(text) };
}

class Tree {
  constructor(model, el, alone) {
    Object.assign(this, { model, el, alone, all: false, top: 0, drawn: new Map(), known: model.get("selected"), tall: ROW, wider: 1, filled: 0 });
    this.rows = new Rows(model.get("labels"), view(model, "structure", Int32Array), model.get("folded"), model.get("folding"));
    this.titles = model.get("titles");
    this.columns = this.titles.length;
    this.order = this.titles.map((_, column) => column);
    this.uid = `dsx-tree-${Math.random().toString(36).slice(2)}`; // one explorer may stand in a page twice
    this.fill();
    el.classList.add("dsx-tree");
    el.append(this.makeBar(), this.makePort());
    this.heads = this.titles.map((_, place) => this.makeHead(place));
    this.head.append(...this.heads);
    this.entitle();
    this.listen();
    this.fit();
    this.refresh();
    requestAnimationFrame(() => requestAnimationFrame(() => { el.dataset.ready = "1"; }));
  }
  get selected() { return this.model.get("selected"); }
  set(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  // What is made once

  makeBar() {
    const bar = element("div", "dsx-bar");
    this.filter = element("input", "dsx-filter");
    this.filter.type = "search";
    this.filter.placeholder = "find modules: *.mlp";
    this.filter.setAttribute("aria-label", "find modules by pattern");
    this.filter.title = `show only such modules, ${GRAMMAR}`;
    this.fold = element("button", "dsx-fold");
    this.fold.title = "show modules that are the same as one row, or each by itself";
    this.fold.dataset.asks = "";
    this.copy = element("button", "dsx-copy", "copy name");
    this.copy.title = "copy the full names of all modules that the selected row stands for (key c)";
    this.count = element("span", "dsx-count");
    this.count.setAttribute("role", "status");
    this.wide = element("button", "dsx-wide");
    this.wide.setAttribute("aria-pressed", false);
    bar.append(...(this.alone ? [this.filter] : []), this.fold, this.copy, this.wide, this.count);
    return bar;
  }
  makePort() {
    this.port = element("div", "dsx-port");
    this.port.style.maxHeight = `${this.model.get("height")}px`;
    this.port.tabIndex = 0;
    this.port.setAttribute("role", "treegrid");
    this.port.setAttribute("aria-label", "modules");
    this.head = element("div", "dsx-row dsx-head");
    this.head.setAttribute("role", "row");
    this.head.setAttribute("aria-rowindex", 1);
    this.head.append(element("span", "dsx-name", "module"));
    this.head.firstChild.setAttribute("role", "columnheader");
    this.space = element("div", "dsx-space");
    this.space.setAttribute("role", "rowgroup");
    this.body = element("div", "dsx-body");
    this.body.setAttribute("role", "presentation");
    this.space.append(this.body);
    this.port.append(this.head, this.space);
    return this.port;
  }
  makeHead(place) {
    const header = element("span", "dsx-cell"), button = element("button", "", " ");
    header.setAttribute("role", "columnheader");
    button.addEventListener("click", () => this.sortBy(this.order[place]));
    header.append(button);
    return header;
  }
  listen() {
    const { port, body, filter } = this;
    port.addEventListener("keydown", (event) => this.keys(event));
    port.addEventListener("scroll", () => {
      if (this.top === port.scrollTop) return;
      this.top = port.scrollTop;
      requestAnimationFrame(() => this.paint());
    });
    body.addEventListener("click", (event) => this.clicked(event));
    body.addEventListener("dblclick", ({ target }) => {
      const row = target.closest(".dsx-row");
      if (row && !this.rows.leaf(Number(row.dataset.row))) this.toggle(Number(row.dataset.row));
    });
    filter.addEventListener("input", () => {
      this.rows.query = filter.value.trim();
      port.scrollTop = this.top = 0;
      this.refresh();
    });
    for (const type of ["keydown", "keyup", "keypress"]) filter.addEventListener(type, (event) => event.stopPropagation());
    this.copy.addEventListener("click", () => { if (this.selected >= 0) this.copyNames(this.selected); });
    this.fold.addEventListener("click", () => this.set("folding", !this.rows.folding));
    this.wide.addEventListener("click", () => { this.all = !this.all; this.fit(); this.paint(); });
    this.seen = new ResizeObserver(() => { this.fit(); this.paint(); });
    this.seen.observe(port);
    this.seen.observe(filter); // higher where the text is larger
  }
  end() { this.seen.disconnect(); }

  // What the page shows

  fill() {
    const { rows, model } = this;
    this.filled += 1;
    rows.fill(model.get("columns"), view(model, "values", Float32Array));
    this.bar = this.titles.findIndex(([, unit]) => unit === "bar");
    this.whole = 0;
    if (this.bar > 0) for (let i = 0; i < rows.count; i = rows.end(i)) if (!rows.hidden(i)) this.whole += rows.value(this.bar - 1, i);
  }
  // The columns in their order. Where not all are shown, those behind the bar that hold nothing come last: under a filter
  // by phase the others make room for the phase's own.
  arrange() {
    const { rows, titles, all, bar } = this, empty = (column) => !all && column > bar && rows.columns[column] < 0;
    const natural = titles.map((_, column) => column), order = [...natural.filter((c) => !empty(c)), ...natural.filter(empty)];
    if (order.every((column, place) => column === this.order[place])) return;
    this.order = order;
    this.filled += 1;
    this.entitle();
  }
  // The titles of the columns, with the sign of the one that is sorted by.
  entitle() {
    const { rows: { sort }, titles } = this;
    this.heads.forEach((header, place) => {
      const column = this.order[place], [title, , said] = titles[column], button = header.firstChild;
      const on = sort && sort.shown === column;
      write(button, headed(title) + (on ? (sort.down ? " ▾" : " ▴") : ""));
      if (headed(title) === title) button.removeAttribute("aria-label");
      else put(button, "aria-label", title);
      put(button, "title", said ? `${said}; a click sorts by it` : `sort by ${title}`);
      put(header, "aria-colindex", column + 2);
      put(header, "aria-sort", on ? (sort.down ? "descending" : "ascending") : "none");
    });
  }
  // The bar of a row: a part per axis, as shares of what all rows together send. Shares are rounded up to quarters of a
  // percent, less than the pixel that a part takes at least: among many modules most bars then stay as they are.
  bars(cell, i) {
    const shares = [];
    for (let axis = 0; axis < this.model.get("axes").length; axis++) shares.push(Math.ceil(400 * this.rows.value(this.bar + 1 + axis, i) / (this.whole || 1)) / 4);
    const drawn = shares.join(" ");
    if (cell.dataset.shares === drawn) return;
    cell.dataset.shares = drawn;
    if (!shares.some(Boolean)) { cell.replaceChildren(); return; }
    if (!cell.firstChild) {
      const thin = element("span", "thin");
      thin.append(...this.model.get("axes").map((color) => element("i", `a${color}`)));
      cell.append(thin);
    }
    shares.forEach((share, axis) => {
      const part = cell.firstChild.children[axis];
      part.style.width = `${share}%`;
      part.hidden = !share;
    });
  }
  // As many columns as fit; the others come with a button, and a scroll bar. Rows and columns grow with the text.
  fit() {
    this.wider = (parseFloat(getComputedStyle(this.port).fontSize) || TEXT) / TEXT;
    this.tall = Math.round(ROW * this.wider);
    this.el.style.setProperty("--dsx-row", `${this.tall}px`);
    const cell = CELL * this.wider, name = NAME * this.wider;
    const { all, titles } = this, room = Math.max(1, Math.floor((this.port.clientWidth - name) / cell));
    this.columns = all ? titles.length : Math.min(titles.length, room);
    this.el.classList.toggle("dsx-sideways", all);
    this.space.style.height = `${this.rows.shown.length * this.tall}px`;
    const width = name + this.columns * cell;
    for (const part of [this.head, this.space, this.body]) part.style.minWidth = all ? `${width}px` : "0";
    this.arrange();
    this.heads.forEach((header, place) => { header.hidden = place >= this.columns; });
    put(this.port, "aria-colcount", titles.length + 1);
    this.wide.hidden = !all && this.columns === titles.length;
    const more = titles.length - this.columns;
    this.wide.textContent = all ? "fewer columns" : `${more} more column${more === 1 ? "" : "s"}`;
    this.wide.setAttribute("aria-pressed", all);
  }
  refresh() {
    const { rows } = this;
    rows.update();
    this.space.style.height = `${rows.shown.length * this.tall}px`;
    const none = rows.query && !rows.shown.length && !/[*?[]/.test(rows.query) ? `; * is any text: try *${rows.query}*` : "";
    write(this.count, `${rows.shown.length.toLocaleString("en")} of ${rows.count.toLocaleString("en")} modules${none}`);
    this.port.setAttribute("aria-rowcount", rows.shown.length + 1);
    this.fold.textContent = rows.folding ? "unfold ×N" : "fold ×N";
    this.fold.setAttribute("aria-pressed", rows.folding);
    this.paint();
  }
  // The scroll position is kept in `top`: reading it after a change forces a layout.
  paint() {
    const { rows, body, drawn, tall } = this, most = Math.ceil(this.model.get("height") / tall);
    const first = Math.max(0, Math.min(Math.floor(this.top / tall), rows.shown.length - most) - 2);
    const last = Math.min(rows.shown.length, first + most + 4);
    const kept = new Map();
    for (let r = first; r < last; r++) {
      const i = rows.shown[r], key = `${i} ${this.columns} ${rows.folding}`;
      kept.set(key, drawn.get(key) || this.line(i));
      this.update(kept.get(key), i, r);
    }
    for (const [key, { row }] of drawn) if (!kept.has(key)) row.remove();
    let at = body.firstChild;
    for (const { row } of kept.values()) {
      if (row === at) at = at.nextSibling;
      else body.insertBefore(row, at);
    }
    this.drawn = kept;
    body.style.transform = `translateY(${first * tall}px)`;
    const active = rows.shown.indexOf(this.selected);
    if (active >= first && active < last) put(this.port, "aria-activedescendant", `${this.uid}-${this.selected}`);
    else this.port.removeAttribute("aria-activedescendant");
  }
  // The part of a row that never changes; see update for the rest.
  line(i) {
    const { rows, model } = this, row = element("div", "dsx-row"), name = element("span", "dsx-name"), twist = element("span", "dsx-twist");
    const type = model.get("types")[rows.type(i)], note = model.get("notes")[i], many = rows.fold(i);
    row.id = `${this.uid}-${i}`;
    row.dataset.row = i;
    row.setAttribute("role", "row");
    row.setAttribute("aria-level", rows.depth(i) + 1);
    name.setAttribute("role", "rowheader");
    name.style.paddingLeft = `${4 + rows.depth(i) * 14}px`;
    name.title = [rows.title(i).slice(0, 2000), type, note].filter(Boolean).join("\n");
    name.append(twist, element("bdi", "", rows.label(i)));
    if (many) name.append(element("span", "dsx-times", `×${many[1].length}`));
    const sum = rows.times(i);
    if (sum > 1) {
      const mark = element("span", "dsx-dim dsx-sum", `Σ ${sum}`);
      mark.title = `the numbers are the sum of ${sum} modules`;
      name.append(mark);
    }
    if (type && type !== rows.labels[i]) {
      const kind = element("bdi", "dsx-dim dsx-type", type);
      // A name that is cut anyhow leaves it its first letters; any other is whole before it.
      if (rows.label(i).length > LONG) kind.style.minWidth = `${Math.min(4, type.length - 1)}ch`;
      name.append(kind);
    }
    if (note) name.append(element("bdi", "dsx-dim dsx-note", note));
    const cells = this.titles.slice(0, this.columns).map(() => element("span", "dsx-cell"));
    for (const cell of cells) cell.setAttribute("role", "gridcell");
    row.append(name, ...cells);
    return { row, twist, cells, filled: 0 };
  }
  // A row that stays in sight keeps its elements; only those that differ are changed, and numbers only where others came.
  update(line, i, r) {
    const { row, twist, cells } = line;
    const { rows } = this, opened = Boolean(rows.open[i] || rows.match), selected = this.selected === i;
    put(row, "aria-rowindex", r + 2);
    put(row, "aria-selected", selected);
    row.classList.toggle("dsx-selected", selected);
    if (!rows.leaf(i)) put(row, "aria-expanded", opened);
    write(twist, rows.leaf(i) ? "" : opened ? "▾" : "▸");
    if (line.filled === this.filled) return;
    line.filled = this.filled;
    cells.forEach((cell, place) => {
      const column = this.order[place];
      if (column === this.bar) { this.bars(cell, i); return; }
      const value = rows.given(column, i), unit = this.titles[column][1];
      cell.classList.toggle("dsx-dim", !value);
      write(cell, value || Object.is(value, -0) ? WRITTEN[unit](value) : "–");
    });
  }
  renew(changed) {
    const { rows, selected } = this, moved = selected !== this.known;
    this.known = selected;
    if (changed.has("values") || changed.has("columns")) { this.fill(); this.arrange(); }
    rows.folding = this.model.get("folding");
    const at = moved && selected >= 0 ? rows.reveal(selected) : -1;
    if (moved) this.filter.value = rows.query;
    if (rows.sort || changed.has("folding") || moved) this.refresh();
    else this.paint();
    if (at >= 0) { this.scrollTo(at); this.paint(); }
  }
  scrollTo(position) {
    const { port, tall } = this, at = position * tall, room = port.clientHeight;
    if (at < port.scrollTop) port.scrollTop = at;
    else if (at + tall * 2 > port.scrollTop + room) port.scrollTop = at + 2 * tall - room;
    this.top = port.scrollTop;
  }

  // What the user does

  // Down, then up, then in the order of the model.
  sortBy(column) {
    const { rows } = this, again = rows.sort && rows.sort.shown === column;
    const by = { column: column === this.bar ? column - 1 : column, shown: column };
    rows.sort = !again ? { ...by, down: true } : rows.sort.down ? { ...by, down: false } : null;
    this.entitle();
    this.refresh();
  }
  select(i) {
    if (i === this.selected) this.model.send({ type: "again" });
    else {
      this.known = i;
      this.set("selected", i);
    }
    this.scrollTo(this.rows.shown.indexOf(i));
    this.paint();
  }
  toggle(i, open = !this.rows.open[i]) {
    this.rows.open[i] = open ? 1 : 0;
    this.refresh();
  }
  clear() {
    this.filter.value = this.rows.query = "";
    this.port.scrollTop = this.top = 0;
    this.refresh();
  }
  // Only the rows whose names contain the text, or match it as a pattern; all of them where none does.
  find(text) {
    const { rows } = this;
    rows.query = text && !/[*?[]/.test(text) ? `*${text}*` : text;
    rows.update();
    if (!rows.shown.length) rows.query = "";
    this.port.scrollTop = this.top = 0;
    this.refresh();
  }
  copyNames(i) { copyText(this.rows.names(i).join("\n"), this.el); }
  clicked({ target }) {
    const row = target.closest(".dsx-row");
    if (!row) return;
    const i = Number(row.dataset.row);
    if (target.classList.contains("dsx-twist") && !this.rows.leaf(i)) this.toggle(i);
    else this.select(i);
    this.port.focus({ preventScroll: true });
  }
  keys(event) {
    const { rows } = this, last = rows.shown.length - 1, at = rows.shown.indexOf(this.selected), i = rows.shown[at];
    const page = Math.max(1, Math.floor(this.port.clientHeight / this.tall) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + page, PageUp: at - page }[event.key];
    if (to !== undefined) {
      const next = rows.shown[Math.min(Math.max(to, 0), last)];
      if (next !== i || !event.repeat) this.select(next); // a key that is held at an end asks for nothing more
    } else if (at < 0) return;
    else if (event.key === "ArrowRight") rows.leaf(i) || (rows.open[i] ? this.select(rows.shown[at + 1]) : this.toggle(i, true));
    else if (event.key === "ArrowLeft") !rows.leaf(i) && rows.open[i] ? this.toggle(i, false) : rows.parent(i) >= 0 && this.select(rows.parent(i));
    else if (event.key === "Enter" || event.key === " ") rows.leaf(i) || this.toggle(i);
    else if (event.key === "Escape") { this.set("selected", -1); this.paint(); }
    else if (event.key === "c" && !event.altKey) this.copyNames(i);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
