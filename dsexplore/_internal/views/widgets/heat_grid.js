// A heatmap of few cells, each with its text, as a grid of elements of which only those that differ are changed. Plotly
// takes longer to draw such a figure anew than all other parts of an explorer together.
const GRIDS = new Set(["module_axis", "rank_peer"]);
// The largest value's share of the hue: the page's text is legible on it, light and dark. Zero has the page's color.
const MOST = 60;
export const heatOf = (share) => `color-mix(in srgb,var(--dsx-heat) ${(MOST * share).toFixed(2)}%,transparent)`;

// The heatmap of a figure that is drawn as a grid; null of any other figure.
export function gridIn(data) {
  return data.length === 1 && data[0].type === "heatmap" && GRIDS.has((data[0].meta || {}).kind) ? data[0] : null;
}

export function heatGrid(choose) {
  const el = element("div", "dsx-grid"), tip = element("div", "dsx-tip");
  const pen = document.createElement("canvas").getContext("2d");
  let trace = null, cells = [], heads = [], names = [], widest = 0, longest = 0, pointed = null;
  pen.font = "12px verdana, sans-serif";
  el.hidden = tip.hidden = true;
  const at = ({ target }) => { const cell = target.closest("[data-at]"); return cell && cell.dataset.at.split(",").map(Number); };
  el.addEventListener("click", (event) => { const place = at(event); if (place) choose(...place); });
  el.addEventListener("pointermove", (event) => say(at(event)));
  el.addEventListener("pointerleave", () => say(null));

  // What a cell is, below it; above it in the lower half.
  function say(place) {
    if (tip.hidden === Boolean(place)) tip.hidden = !place;
    if (!place) return;
    const cell = cells[place[0]][place[1]], low = 2 * place[0] > cells.length;
    write(tip, markWords({ curve: 0, point: place }, [trace]));
    tip.style.top = low ? "auto" : `${cell.offsetTop + cell.offsetHeight + 2}px`;
    tip.style.bottom = low ? `${el.clientHeight - cell.offsetTop + 2}px` : "auto";
    tip.style.right = `${Math.max(0, el.clientWidth - cell.offsetLeft - cell.offsetWidth)}px`;
  }
  function make(rows, columns) {
    names = rows.map(() => element("span", "dsx-of"));
    heads = columns.map(() => element("span", "dsx-under"));
    cells = rows.map(() => columns.map(() => element("span", "dsx-heat")));
    const lines = names.flatMap((name, r) => [name, ...cells[r]]);
    el.replaceChildren(...lines, element("span"), ...heads, tip);
    const tall = Math.max(1.5, Math.min(4, 24 / rows.length));
    el.style.gridTemplateRows = `repeat(${rows.length},minmax(${tall}em,auto)) auto`;
    el.style.gridTemplateColumns = `fit-content(50%) repeat(${columns.length},minmax(0,1fr))`;
  }
  // A name that breaks into lines behind its dots and underscores, and before the capitals of its words.
  function parted(text) {
    const whole = element("span");
    text.split(/(?<=\w\.|\*\.|_(?!_))|(?<=[a-z])(?=[A-Z])/).forEach((part, i) => whole.append(...(i ? [element("wbr")] : []), part));
    return whole;
  }
  function fill(cell, r, c) {
    const z = trace.z[r][c], empty = z === null || Number.isNaN(z);
    write(cell, empty ? "" : ((trace.text || [])[r] || [])[c] || "");
    const color = empty ? "" : heatOf((z - trace.zmin) / (trace.zmax - trace.zmin || 1));
    if (cell.dataset.drawn !== color) cell.style.backgroundColor = cell.dataset.drawn = color;
    if (empty) cell.removeAttribute("data-at");
    else put(cell, "data-at", `${r},${c}`);
  }
  function show(given, width) {
    trace = given;
    const rows = trace.y.map(plainText), columns = trace.x.map(plainText);
    if (rows.length !== names.length || columns.length !== heads.length) make(rows, columns);
    names.forEach((name, r) => { if (name.textContent !== rows[r]) name.replaceChildren(parted(rows[r])); });
    heads.forEach((head, c) => write(head, columns[c]));
    cells.forEach((line, r) => line.forEach((cell, c) => fill(cell, r, c)));
    const wide = (texts) => Math.max(0, ...texts.map((text) => pen.measureText(text).width));
    widest = wide(columns);
    longest = wide(rows);
    point(null);
    say(null);
    fit(width);
  }
  // Names of columns that do not fit side by side stand upright.
  function fit(width) {
    el.classList.toggle("dsx-upright", width > 0 && widest + 8 > (width - Math.min(longest + 8, 0.5 * width)) / heads.length);
  }
  function point(place) {
    if (pointed) pointed.classList.remove("dsx-at");
    pointed = place && cells[place[0]][place[1]];
    if (pointed) pointed.classList.add("dsx-at");
  }
  return { el, show, fit, point };
}
