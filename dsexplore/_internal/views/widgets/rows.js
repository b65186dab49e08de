// What both boxes for modules take, as `Trace.where` does.
const GRAMMAR = "and all inside them: layers.0, *.mlp (* is any text, ? any letter)";

// A shell pattern as fnmatch reads it, for a module or what it is inside of, with or without the root's name.
export function modulePattern(text) {
  const parts = [...text.matchAll(/\*+|\?|\[(!?)(\]?[^\]]+|\])\]|[^]/gu)].map(([part, not, set]) => {
    if (part[0] === "*") return "[^]*";
    if (part === "?") return "[^]";
    if (set !== undefined) return `[${not ? "^" : ""}${set.replace(/[\\\]\[^]/g, "\\$&")}]`;
    return part.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  });
  try { return new RegExp(`^(?:[^.]*\\.)?(?:${parts.join("")})(?=\\.|$)`, "u"); } catch { return /(?!)/; }
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
  // The number as it was sent, and its size: bytes have a sign if some are unknown, see formatSum.
  given(column, i) { return this.values[this.columns[column] * this.count + i] ?? 0; }
  value(column, i) { return Math.abs(this.given(column, i)); }
  fold(i) { return this.folding ? this.folded[i] : undefined; }
  // How many modules the numbers of a row are the sum of.
  times(i) {
    let found = 1;
    for (let at = i; at >= 0; at = this.parent(at)) found *= this.fold(at) ? this.fold(at)[1].length : 1;
    return found;
  }
  label(i) { return this.fold(i) ? this.fold(i)[0] : this.labels[i]; }
  path(i, label) {
    const parts = [];
    for (let at = i; at >= 0; at = this.parent(at)) parts.unshift(label(at));
    return parts.join(".");
  }
  // The title of a row: one name, or "Net.layers.[0–30].up" for several modules.
  title(i) { return this.path(i, (at) => this.label(at)); }
  // The rows of all modules that the row stands for, in the model's order.
  instances(i) {
    let found = [i];
    for (let at = i; at >= 0; at = this.parent(at)) {
      const same = this.fold(at);
      if (same) found = found.flatMap((row) => same[1].map((other) => row - at + other));
    }
    return found.sort((a, b) => a - b);
  }
  // Their fully qualified names.
  names(i) { return this.instances(i).map((row) => this.path(row, (at) => this.labels[at])); }
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
    this.match = this.query ? this.matches(modulePattern(this.query)) : null;
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
  // The rows that match, and those around them.
  matches(pattern) {
    const names = new Array(this.count);
    const match = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i++) {
      const parent = this.parent(i);
      names[i] = parent < 0 ? this.labels[i] : `${names[parent]}.${this.labels[i]}`;
      // What is inside of a module that matches needs no look of its own.
      if ((parent >= 0 && match[parent]) || pattern.test(names[i])) match[i] = 1;
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
