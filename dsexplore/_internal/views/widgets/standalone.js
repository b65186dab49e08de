// What answers the explorer's page in a file of its own, in the kernel's place: the events as columns, the filters, their
// sums by module, and the boxes of the timeline. The numbers are those of the Python that answers in a notebook. It is a
// second explorer because a page in a mail or a CI artifact has no kernel, and no Python that is small enough to send.
const COLUMNS = 480, MOST = 800, LISTED = 12, TICKS = 5, MOST_TIES = 400, MOST_LATE = 200;
const TYPES = { i4: Int32Array, i2: Uint16Array, i1: Uint8Array, f8: Float64Array, f4: Float32Array };

function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (!value || typeof value !== "object") return value;
  if (value.packed === undefined) return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, unpacked(each)]));
  const bytes = Uint8Array.from(atob(value.packed), (c) => c.charCodeAt(0));
  return new TYPES[value.type](bytes.buffer);
}

export async function standalone(text, el) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const model = new Standalone(unpacked(await new Response(plain).json()));
  follow(model, assemble({ model, store: model, el }));
  return model;
}

class Standalone {
  constructor({ state, events, lines, parameters, sentences, lanes, triggers }) {
    Object.assign(this, { events, lines, parameters, sentences, lanes, triggers, listeners: {}, range: null, picked: null, led: -1 });
    this.state = { ...state, chosen: {}, pattern: "", implicit: false, selected: -1, folding: true, tab: "timeline",
      status: "", details: "", timeline: {}, brushed: {}, panel: "", values: new Float32Array(0), columns: [] };
    this.rows = new Rows(state.labels, state.structure, state.folded, true);
    this.names = [];
    for (let i = 0; i < this.rows.count; i++) {
      const parent = this.rows.parent(i);
      this.names[i] = parent < 0 ? state.labels[i] : `${this.names[parent]}.${state.labels[i]}`;
    }
    this.names = this.names.map((name) => (name === lanes.outside ? "" : name));
    this.whole = [Infinity, -Infinity];
    for (let i = 0; i < events.begin.length; i++) {
      this.whole[0] = Math.min(this.whole[0], events.begin[i]);
      this.whole[1] = Math.max(this.whole[1], events.end[i]);
    }
    if (!(this.whole[1] > this.whole[0])) this.whole = [0, 1];
    this.window = this.whole;
    // Where no size is known, events have NaN; sums are as in Python, see formatSum.
    this.unknown = {};
    for (const sizes of ["wire", "message"]) {
      this.unknown[sizes] = Uint8Array.from(events[sizes], (size) => Number.isNaN(size));
      events[sizes] = events[sizes].map((size) => size || 0);
    }
    this.largest = {};
    for (const sizes of ["wire", "message"]) this.largest[sizes] = events[sizes].reduce((most, size) => Math.max(most, size), 0);
    this.renew();
  }

  // As a widget's model

  get(name) { return this.state[name]; }
  set(name, value) {
    this.state[name] = value;
    this.tell(name);
    if (["chosen", "pattern", "implicit", "sizes"].includes(name)) { this.picked = null; this.renew(); }
    else if (name === "selected") { this.picked = null; this.draw(); this.describe(); }
    else if (name === "folding") { this.rows.folding = value; this.fill(); this.describe(); }
  }
  save_changes() {}
  on(name, listener) { (this.listeners[name] ||= []).push(listener); }
  off(name, listener) { this.listeners[name] = (this.listeners[name] || []).filter((each) => each !== listener); }
  tell(name) { for (const listener of this.listeners[`change:${name}`] || []) listener(); }
  put(name, value) { this.state[name] = value; this.tell(name); }
  send(message) {
    const acts = {
      clear: () => this.clear(), again: () => this.set("selected", this.state.selected), sentence: ({ index }) => this.lead(index),
      brush: ({ begin, end }) => this.brush(begin, end), unbrush: () => this.drop(), drop: ({ part }) => this.drop(part),
      pick: ({ box }) => this.pick(box), window: ({ begin, end }) => this.zoom(this.at(begin), this.at(end)),
      whole: () => this.zoom(...this.whole),
    };
    if (acts[message.type]) acts[message.type](message);
  }

  // Which events

  get size() { return this.events[this.state.sizes]; }
  get unsized() { return this.unknown[this.state.sizes]; }
  sum(held) {
    let known = 0, unknown = 0;
    for (const i of held) { known += this.size[i]; unknown += this.unsized[i]; }
    return unknown ? -known : known;
  }
  get count() { return this.events.owner.length; }
  mask() {
    const { chosen, implicit, pattern } = this.state, { events } = this, found = new Uint8Array(this.count).fill(1);
    for (const [name, index] of Object.entries(chosen)) {
      if (index) for (let i = 0; i < found.length; i++) if (events.facets[name][i] !== index - 1) found[i] = 0;
    }
    if (implicit) for (let i = 0; i < found.length; i++) found[i] &= events.implicit[i];
    this.known = true;
    if (pattern) {
      const test = modulePattern(pattern), owners = this.names.map((name) => test.test(name)), others = this.triggers.map((name) => test.test(name));
      this.known = owners.includes(true) || others.includes(true);
      for (let i = 0; i < found.length; i++) if (!owners[events.owner[i]] && !others[events.trigger[i]]) found[i] = 0;
    }
    if (this.led >= 0) {
      const rows = new Set(this.sentences[this.led].rows);
      for (let i = 0; i < found.length; i++) if (!rows.has(i)) found[i] = 0;
    }
    return found;
  }
  inRange(mask) {
    if (!this.range) return mask;
    const [begin, end] = this.range, { events } = this;
    return mask.map((kept, i) => kept && events.begin[i] < end && events.end[i] > begin ? 1 : 0);
  }
  get chosenRows() { return this.state.selected < 0 ? [] : this.rows.instances(this.state.selected); }
  inside(mask) {
    const rows = this.chosenRows;
    if (!rows.length) return mask;
    const held = new Uint8Array(this.rows.count);
    for (const row of rows) held.fill(1, row, this.rows.end(row));
    return mask.map((kept, i) => (kept && held[this.events.owner[i]] ? 1 : 0));
  }
  // The events that are chosen: those of what was clicked, else of the selected row.
  selection() { return this.picked ? this.picked.mask : this.inside(this.passed); }

  // What changes

  renew() {
    this.open = this.mask();
    this.passed = this.inRange(this.open);
    this.fill();
    this.draw();
    this.describe();
  }
  // Without filters, but for the events of one sentence of the headline; −1: none.
  clear(led = -1) {
    Object.assign(this, { range: null, picked: null, led });
    Object.assign(this.state, { chosen: {}, pattern: "", implicit: false, selected: -1 });
    for (const name of ["chosen", "pattern", "implicit", "selected"]) this.tell(name);
    this.renew();
  }
  drop(part = "timeline") {
    if (part === "sentence") this.led = -1;
    else this.range = null;
    this.picked = null;
    this.renew();
  }
  brush(begin, end) {
    const slack = Math.min(1e-6, (end - begin) / 4);
    this.range = [this.at(begin + slack), this.at(end - slack)];
    this.picked = null;
    this.renew();
  }
  lead(index) {
    this.clear(index);
    this.choose(this.passed, `“${this.sentences[index].text}”`);
  }
  pick(box) {
    const held = this.held[box] || [], mask = new Uint8Array(this.count);
    if (!held.length) return;
    for (const i of held) mask[i] = 1;
    const { texts, boxes: { begin, end, lane }, lanes } = this.state.timeline;
    const range = () => `${lanes[lane[box]]}, from ${this.place(this.at(begin[box]))} to ${this.place(this.at(end[box]))}`;
    this.choose(mask, texts[box] || range());
  }
  choose(mask, title) {
    const sent = new Float64Array(this.rows.count);
    mask.forEach((kept, i) => { if (kept) sent[this.events.owner[i]] += this.size[i]; });
    let row = sent.indexOf(sent.reduce((most, each) => Math.max(most, each), 0));
    if (this.state.folding) row = this.shown(row);
    this.picked = { mask, title };
    this.put("selected", row);
    this.describe();
  }
  shown(row) {
    let found = row;
    for (const [, rows] of Object.values(this.state.folded)) {
      for (const other of rows.slice(1)) if (other <= found && found < this.rows.end(other)) found = found - other + rows[0];
    }
    return found;
  }

  // What is shown

  fill() {
    const { rows, events, state } = this, n = rows.count, { axes, phases, apart, held, predicted } = this.lanes.columns;
    const timed = 2 + axes + phases, parts = timed + 1, sums = new Float64Array(parts * n), missing = new Float64Array(parts * n);
    for (let i = 0; i < this.count; i++) {
      if (!this.passed[i]) continue;
      const row = events.owner[i], size = this.size[i], phase = events.phase[i];
      const unknown = this.unsized[i], add = (part) => { sums[part * n + row] += size; missing[part * n + row] += unknown; };
      add(2 + axes + phase);
      if (apart.includes(phase)) continue;
      sums[row] += 1;
      add(1);
      add(2 + events.axis[i]);
      sums[timed * n + row] += events.end[i] - events.begin[i];
    }
    const own = sums.slice(n, 2 * n), ownMissing = missing.slice(n, 2 * n), bars = new Float64Array(n);
    for (const numbers of [sums, missing]) {
      for (let part = 0; part < parts; part++) {
        for (let i = n - 1; i >= 0; i--) if (rows.parent(i) >= 0) numbers[part * n + rows.parent(i)] += numbers[part * n + i];
      }
    }
    const column = (part, numbers = sums) => numbers.slice(part * n, (part + 1) * n);
    const times = [...(this.lanes.timed ? [column(timed)] : []), ...predicted.map((each) => Float64Array.from(each))];
    const all = [column(0), ...times, column(1), bars, ...Array.from({ length: axes + phases }, (_, k) => column(2 + k)), own, ...held.map((each) => Float64Array.from(each))];
    const none = all.map(() => null), from = 1 + times.length;
    none[from] = column(1, missing);
    for (let k = 0; k < axes + phases; k++) none[from + 2 + k] = column(2 + k, missing);
    none[from + 2 + axes + phases] = ownMissing;
    if (state.folding) {
      for (const [, same] of Object.values(state.folded).reverse()) {
        const length = rows.end(same[0]) - same[0];
        for (const values of [...all, ...none.filter(Boolean)]) for (let k = 0; k < length; k++) values[same[0] + k] = same.reduce((sum, row) => sum + values[row + k], 0);
      }
    }
    none.forEach((unknown, k) => { if (unknown) all[k] = all[k].map((size, i) => (unknown[i] ? -size : size)); });
    const values = new Float32Array(all.length * n);
    all.forEach((each, k) => values.set(each, k * n));
    this.state.columns = all.map((each, k) => (each.some((value) => value || Object.is(value, -0)) ? k : -1));
    this.put("values", values);
  }
  describe() {
    const { state } = this, mask = this.selection(), sizes = state.sizes === "wire" ? "on the wire" : "in messages";
    const held = [];
    mask.forEach((kept, i) => { if (kept) held.push(i); });
    const count = held.length, size = formatSum(this.sum(held));
    const title = this.picked ? this.picked.title : state.selected < 0 ? "" : this.rows.title(state.selected) + (this.chosenRows.length > 1 ? ` ×${this.chosenRows.length}` : "");
    const place = title ? ` in <bdi>${escaped(title)}</bdi>` : "";
    const range = this.range ? `<span class="dsx-dim"> – only from ${this.place(this.range[0])} to ${this.place(this.range[1])} of the timeline</span>${dropped("timeline", "the range of the timeline")}` : "";
    const led = this.led < 0 ? "" : `<span class="dsx-dim"> – only sentence ${this.led + 1} of the headline</span>${dropped("sentence", `sentence ${this.led + 1} of the headline`)}`;
    const known = this.known ? "" : `<span class="dsx-dim"> – no module is called <bdi>${escaped(state.pattern)}</bdi>; * matches any text, as in *.mlp</span>`;
    this.put("status", `<span>${count.toLocaleString("en")} of ${this.count.toLocaleString("en")} collectives, ${size} ${sizes}${place}</span><span class="dsx-dim"> – ${escaped(this.lanes.over)}</span>${range}${led}${known}`);
    this.put("details", title ? `<div class="dsx"><p><b><bdi>${escaped(title)}</bdi></b></p>${this.collectives(mask)}${this.held_by()}</div>` : "");
    const inside = this.range ? `${count.toLocaleString("en")} collectives from ${this.place(this.range[0])} to ${this.place(this.range[1])}: ${size} ${sizes}` : "";
    this.put("brushed", { brush: this.range ? this.range.map((at) => Math.min(1, Math.max(0, (at - this.window[0]) / (this.window[1] - this.window[0])))) : [], status: inside });
  }
  collectives(mask) {
    const counts = new Map();
    mask.forEach((kept, i) => { if (kept) counts.set(this.events.line[i], (counts.get(this.events.line[i]) || 0) + 1); });
    const found = [...counts.keys()].sort((a, b) => a - b), column = this.state.sizes === "wire" ? 8 : 7;
    const body = found.slice(0, LISTED).map((at) => {
      const line = this.lines[at], [op, axis, phase, tensor, cause, source, implicit] = line, count = counts.get(at);
      const tag = implicit ? ' <span class="tag">implicit</span>' : "";
      return `<tr><td class="l"><bdi>${escaped(op)}</bdi>${tag}</td>${["l", "l"].map((c, k) => `<td class="${c}">${escaped([axis || "–", phase][k])}</td>`).join("")}<td>${count.toLocaleString("en")}</td><td>${formatSum(line[column] === null ? -0 : line[column] * count)}</td><td class="l">${escaped(tensor)}</td><td class="l w">${parted(cause || "–")}</td><td class="l w">${parted(source || "–")}</td></tr>`;
    });
    const more = found.length > LISTED ? `<p class="dim">… and ${(found.length - LISTED).toLocaleString("en")} more kinds of collective.</p>` : "";
    return found.length ? tabled(["collective", "axis", "phase", "count", "bytes", "tensor", "cause", "source"], body) + more : '<p class="dim">nothing sent</p>';
  }
  held_by() {
    const own = this.picked ? [] : this.parameters[this.chosenRows[0]] || [];
    return own.length ? tabled(["parameter", "global shape", "local shape", "dtype", "placements", "mesh", "bytes/rank"], own.slice(0, LISTED).map((cells) => `<tr>${cells.map((cell, k) => `<td${k < 6 ? ' class="l"' : ""}>${k < 6 ? escaped(cell) : formatBytes(cell)}</td>`).join("")}</tr>`)) : "";
  }

  // The timeline

  at(share) { return this.window[0] + share * (this.window[1] - this.window[0]); }
  place(at) { return this.lanes.timed ? formatSeconds(at) : Math.round(at).toLocaleString("en"); }
  // At some multiples of 1, 2 or 5 times a power of ten; an axis without time has whole numbers alone.
  ticks() {
    const [first, last] = this.window, least = (last - first) / TICKS, power = 10 ** Math.floor(Math.log10(least)), places = [];
    const round = [1, 2, 5, 10].find((factor) => factor * power >= least * (1 - 1e-9)) * power, step = (this.lanes.timed ? round : Math.max(1, round)) || 1;
    for (let k = Math.ceil(first / step - 1e-9); k <= last / step + 1e-9; k++) places.push(k * step || 0);
    if (!places.length) places.push(Math.floor(first));
    return places.map((at) => [Math.min(1, Math.max(0, (at - first) / (last - first))), this.place(at)]);
  }
  zoom(begin, end) {
    const [first, last] = this.whole, width = Math.min(Math.max(end - begin, (last - first) * 1e-9), last - first);
    const from = Math.min(Math.max(begin, first), last - width);
    this.window = [from, from + width];
    this.draw(this.around);
    this.describe();
  }
  draw(mask = this.inside(this.open)) {
    this.around = mask;
    const { events, lanes } = this, [first, last] = this.window, inside = [];
    for (let i = 0; i < this.count; i++) if (mask[i] && events.begin[i] < last && events.end[i] > first) inside.push(i);
    const made = inside.length <= MOST ? this.single(inside) : this.binned(inside);
    this.held = made.map(({ held }) => held);
    const take = (name, Type) => Type.from(made, (box) => box[name]);
    const one = inside.length <= MOST, sized = this.state.sizes === "wire" ? "on the wire" : "in messages";
    this.put("timeline", {
      title: lanes.title, lanes: lanes.names, marks: lanes.marks, words: sized, axis: `${lanes.axis}; taller is more ${this.state.sizes} bytes`,
      boxes: { begin: take("begin", Float32Array), end: take("end", Float32Array), level: take("level", Float32Array), lane: take("lane", Uint16Array),
        mark: take("mark", Uint8Array), ...(one ? {} : { count: take("count", Uint32Array), bytes: take("bytes", Float32Array) }),
        ...(one && this.events.waiting ? { waiting: take("waiting", Float32Array) } : {}) },
      skew: lanes.skew, late: this.late(mask),
      texts: one ? inside.map((i) => this.said(i)) : [], labels: [], ties: this.ties(mask), zoomed: first !== this.whole[0] || last !== this.whole[1],
      ticks: this.count ? this.ticks() : [],
    });
  }
  // Lines from sends to receives, between events that are shown; none where they are too many to be seen.
  ties(mask) {
    const { events, lanes: { ties: { send, receive } } } = this, [first, last] = this.window, share = (at) => (at - first) / (last - first), found = [];
    send.forEach((from, k) => {
      const to = receive[k];
      if (mask[from] && mask[to] && events.begin[to] >= first && events.end[from] <= last) found.push([share(events.end[from]), events.lane[from], share(events.begin[to]), events.lane[to]]);
    });
    return found.length > MOST_TIES ? [] : found;
  }
  // Lines before the events of late ranks that are shown, as long as they are late: the latest first.
  late(mask) {
    const { events } = this, [first, last] = this.window, share = (at) => Math.min(1, Math.max(0, (at - first) / (last - first)));
    const by = events.late_by || [], seen = [...by.keys()].filter((i) => by[i] && mask[i] && events.begin[i] - by[i] < last && events.begin[i] > first);
    return seen.sort((a, b) => by[b] - by[a]).slice(0, MOST_LATE).map((i) => [share(events.begin[i] - by[i]), events.lane[i], share(events.begin[i]), `+${formatSeconds(by[i])}`]);
  }
  single(inside) {
    const { events, size } = this, [first, last] = this.window, share = (at) => Math.min(1, Math.max(0, (at - first) / (last - first)));
    const most = this.largest[this.state.sizes] || 1;
    return inside.map((i) => ({ begin: share(events.begin[i]), end: share(events.end[i]), level: size[i] / most,
      lane: events.lane[i], mark: events.mark[i], count: 1, bytes: size[i], held: [i], waiting: share(events.begin[i] + (events.waiting ? events.waiting[i] : 0)) }));
  }
  binned(inside) {
    const { events, size } = this, [first, last] = this.window, cells = new Map(), most = this.largest[this.state.sizes] || 1;
    for (const i of inside) {
      const column = Math.min(COLUMNS - 1, Math.max(0, Math.floor(((events.begin[i] - first) / (last - first)) * COLUMNS))), key = events.lane[i] * COLUMNS + column;
      const cell = cells.get(key) || { column, lane: events.lane[i], bytes: 0, held: [], marks: {}, until: 0 };
      cell.bytes += size[i];
      cell.unknown = cell.unknown || this.unsized[i];
      cell.held.push(i);
      cell.marks[events.mark[i]] = (cell.marks[events.mark[i]] || 0) + size[i];
      if (events.end[i] - events.begin[i] > (last - first) / COLUMNS) cell.until = Math.max(cell.until, (events.end[i] - first) / (last - first));
      cells.set(key, cell);
    }
    return [...cells.entries()].sort(([a], [b]) => a - b).map(([, cell]) => ({
      begin: cell.column / COLUMNS, end: Math.min(1, Math.max((cell.column + 1) / COLUMNS, cell.until)), lane: cell.lane, held: cell.held,
      mark: Number(Object.entries(cell.marks).sort((a, b) => b[1] - a[1])[0][0]), count: cell.held.length, bytes: cell.unknown ? -cell.bytes : cell.bytes,
      level: cell.bytes / cell.held.length / most,
    }));
  }
  said(i) {
    const { events, lanes } = this, line = this.lines[events.line[i]], sized = this.state.sizes === "wire" ? "on the wire" : "in messages";
    const parts = [line[0], lanes.marks[events.mark[i]][0], this.unsized[i] ? formatSum(-0) : `${formatBytes(this.size[i])} ${sized}`, this.names[events.owner[i]], line[4], line[5]];
    const since = this.place(events.begin[i]), skew = [events.waiting, events.late_by].map((seconds, k) => seconds && seconds[i] && `${lanes.skew[k][0]}: ${formatSeconds(seconds[i])}`);
    return [...new Set(parts.filter(Boolean)), lanes.timed ? `at ${since}, for ${formatSeconds(events.end[i] - events.begin[i])}` : `at ${since}`, ...skew.filter(Boolean)].join(" · ");
  }
}

const dropped = (part, what) => `<button class="dsx-drop" data-drop="${part}" aria-label="drop: ${what}">drop</button>`;
// Broken into lines behind dots, slashes and underscores before any other place, as in Python.
const parted = (name) => escaped(name).replace(/\.(?!py\b)(?=[^\W\d])|[/_](?=\w)|\((?=[^\W\d])/g, "$&<wbr>");
const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" })[c]);
const tabled = (head, rows) => `<div class="scroll"><table><thead><tr>${head.map((title) => `<th scope="col" class="l">${title}</th>`).join("")}</tr></thead><tbody>${rows.join("")}</tbody></table></div>`;
