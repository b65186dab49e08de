// Boxes in lanes on a canvas. The kernel sends what one window holds in the trait "timeline"; here the window is dragged
// over and the wheel is turned, and the range asked for is sent back, from 0 to 1 of the window that is shown.
// Pixels where the page's text has BODY of them: of a lane, the axis, the names of lanes at least, and words.
const LANE = 24, AXIS = 22, LEAST = 44, WORD = 12, BODY = 13;
const WHEEL = 1.25, PAN = 0.2;

export function timeline({ model, el }) {
  el.classList.add("dsx-timeline");
  const title = element("p"), verdict = element("p", "verdict"), key = element("div", "dim keyed"), rows = element("div", "rows"), bar = element("p");
  const canvas = element("canvas"), tip = element("div", "tip"), status = element("span", "dim");
  const whole = element("button", "", "whole timeline"), none = element("button", "", "clear the selection");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  tip.hidden = true;
  status.setAttribute("role", "status");
  rows.append(canvas, tip);
  bar.append(whole, none, status);
  el.append(title, verdict, key, rows, bar);
  const pen = canvas.getContext("2d");
  // Kept, because to read any of them after a change of the page makes the browser lay it out at once.
  let width = 0, color = "", family = "", keyed = "", scale = 1, row = LANE;
  let names = 0, drag = null, at = -1, anchor = -1;
  let now = model.get("timeline"), choice = model.get("brushed");
  const send = (message) => model.send(message);
  const zoom = (begin, end) => send({ type: "window", begin, end });

  function columns() {
    const given = now.boxes || {};
    const read = (name, Type) => typed(given[name], Type);
    const begin = read("begin", Float32Array), lane = read("lane", Uint16Array), level = read("level", Float32Array);
    return {
      begin, lane, level, next: followers(begin, lane, level), end: read("end", Float32Array),
      mark: read("mark", Uint8Array), waiting: read("waiting", Float32Array), count: read("count", Uint32Array), bytes: read("bytes", Float32Array),
    };
  }
  // Where the next box of each one's lane begins: what is written on a box ends there. One of no bytes covers no letter.
  function followers(begin, lane, level) {
    const next = new Float32Array(begin.length), of = new Map();
    for (let i = begin.length - 1; i >= 0; i -= 1) {
      next[i] = of.get(lane[i]) ?? Infinity;
      if (level[i] > 0) of.set(lane[i], begin[i]);
    }
    return next;
  }
  let found = columns();
  const across = (place) => names + place * (width - names);
  const place = (x) => Math.min(1, Math.max(0, (x - names) / Math.max(1, width - names)));
  const box = (i) => {
    const left = across(found.begin[i]), tall = 3 + (row - 6) * found.level[i];
    return [left, (found.lane[i] + 1) * row - 2 - tall, Math.max(1, across(found.end[i]) - left), tall];
  };

  function measure() {
    width = canvas.clientWidth;
    const style = getComputedStyle(canvas);
    ({ color, fontFamily: family } = style);
    scale = (parseFloat(style.fontSize) || BODY) / BODY;
    row = Math.round(LANE * scale);
  }
  function draw() {
    if (!width) measure();
    if (!width) return;
    const { lanes = [], marks = [], ticks = [], ties = [], late = [] } = now;
    const ratio = globalThis.devicePixelRatio || 1, height = lanes.length * row + AXIS * scale;
    const wide = Math.round(width * ratio), tall = Math.round(height * ratio);
    if (canvas.width !== wide || canvas.height !== tall) {
      Object.assign(canvas, { width: wide, height: tall });
      canvas.style.height = `${height}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const comesLate = new Set(late.map(([, lane]) => lane));
    const letters = (weight) => { pen.font = `${weight} ${WORD * scale}px ${family}`; };
    letters(comesLate.size ? 600 : 400);
    names = Math.min(width * 0.34, Math.max(LEAST * scale, ...lanes.map((lane) => pen.measureText(lane).width + 10)));
    pen.textBaseline = "middle";
    lanes.forEach((lane, i) => {
      pen.fillStyle = color;
      pen.globalAlpha = 0.06;
      if (i % 2 === 0) pen.fillRect(names, i * row, width - names, row);
      pen.globalAlpha = 1;
      letters(comesLate.has(i) ? 600 : 400);
      pen.fillText(shortened(lane, names - 8), 0, i * row + row / 2);
    });
    letters(400);
    for (let i = 0; i < found.begin.length; i += 1) drawBox(i, marks[found.mark[i]]);
    drawTies(ties, color);
    drawLate(late);
    for (let i = 0; i < found.begin.length; i += 1) drawLabel(i, marks[found.mark[i]]);
    pen.fillStyle = color;
    for (const [where, text] of ticks) {
      const wide = pen.measureText(text).width, x = Math.min(width - wide, Math.max(names, across(where) - wide / 2));
      pen.fillText(text, x, height - (AXIS * scale) / 2);
    }
    const brush = drag ? drag.range : choice.brush || [];
    if (brush.length) {
      pen.strokeStyle = color;
      pen.lineWidth = 1.5;
      pen.strokeRect(across(brush[0]), 1, Math.max(2, across(brush[1]) - across(brush[0])), lanes.length * row - 2);
    }
    if (at >= 0 && at < found.begin.length) {
      const [x, y, wide, tall] = box(at);
      pen.strokeStyle = color;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 1, wide + 2, tall + 2);
    }
    canvas.dataset.drawn = String(Number(canvas.dataset.drawn || 0) + 1);
  }

  function drawBox(i, [, , color]) {
    const [x, y, wide, tall] = box(i);
    pen.fillStyle = color;
    pen.fillRect(x, y, wide > 4 ? wide - 1 : wide, tall);
    const waits = Math.min(wide, wait(i) - x);
    if (waits <= 0) return;
    [[, , pen.fillStyle]] = now.skew;
    pen.fillRect(x, y, waits, tall);
  }
  // Where a box's waiting for a rank that comes later ends.
  function wait(i) { return found.waiting.length ? across(found.waiting[i]) : across(found.begin[i]); }

  // A line from when a late rank should have come to when it comes, and above it by how much, where that has room.
  function drawLate(late) {
    const taken = [];
    for (const [begin, lane, end, text] of late) {
      const x = across(begin), wide = Math.max(2, across(end) - x), y = lane * row, length = pen.measureText(text).width;
      [, [, , pen.fillStyle]] = now.skew;
      pen.fillRect(x, y + row - 7 * scale, wide, 3 * scale);
      const left = x + wide - length, hides = ([of, at, until]) => of === lane && left < until + 6 && left + length > at - 6;
      if (length > wide || taken.some(hides)) continue;
      taken.push([lane, left, left + length]);
      pen.fillStyle = color;
      pen.fillText(text, left, y + row / 2 - 2 * scale);
    }
  }

  // The label of a box, and a patch of the box's color behind it, which keeps lines off the label.
  function drawLabel(i, [, letter, color, ink]) {
    const [from, y, all, tall] = box(i), x = Math.max(from, wait(i)), wide = from + all - x;
    const text = now.labels && now.labels.length ? now.labels[i] : letter;
    const room = Math.min(wide, across(found.next[i]) - x);
    if (text && tall > 11 * scale && room > 7 * scale * (1 + text.length)) {
      const length = pen.measureText(text).width, left = x + (room - length) / 2;
      pen.fillStyle = color;
      if (now.ties && now.ties.length) pen.fillRect(left - 2, y, length + 4, tall);
      pen.fillStyle = ink;
      pen.fillText(text, left, y + tall / 2);
    }
  }

  // Lines from sends to receives.
  function drawTies(ties, color) {
    pen.strokeStyle = color;
    pen.globalAlpha = 0.55;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const [sent, of, got, to] of ties) {
      pen.moveTo(across(sent), (of + 0.5) * row);
      pen.lineTo(across(got), (to + 0.5) * row);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // What a box is: the kernel says it of single spans; a column has its numbers.
  function said(i) {
    if (now.texts && now.texts.length) return now.texts[i] || "";
    const most = (now.marks[found.mark[i]] || [""])[0], count = found.count[i];
    return `${now.lanes[found.lane[i]]}: ${count.toLocaleString("en")} ×, ${formatSum(found.bytes[i])} ${now.words}; most of it: ${most}`;
  }

  function shortened(text, room) {
    if (pen.measureText(text).width <= room) return text;
    let kept = text.length;
    while (kept > 1 && pen.measureText(`…${text.slice(-kept)}`).width > room) kept -= 1;
    return `…${text.slice(-kept)}`;
  }

  function under(event) {
    const here = canvas.getBoundingClientRect(), x = event.clientX - here.left, y = event.clientY - here.top;
    for (let i = found.begin.length - 1; i >= 0; i -= 1) {
      if (found.lane[i] !== Math.floor(y / row)) continue;
      const [left, , wide] = box(i);
      if (x >= left - 1 && x <= left + wide + 1) return i;
    }
    return -1;
  }

  function point(i) {
    at = i;
    anchor = -1;
    tip.hidden = i < 0;
    if (i >= 0) {
      const [x, , wide] = box(i), text = said(i);
      write(tip, text);
      tip.style.top = `${(found.lane[i] + 1) * row + 2}px`;
      const left = Math.min(x + wide / 2, width * 0.55);
      tip.style.left = `${Math.max(0, left)}px`;
    }
    draw();
  }

  const started = (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    const from = place(event.clientX - canvas.getBoundingClientRect().left);
    drag = { from, range: [from, from] };
  };
  const moved = (event) => {
    if (!drag) return void point(under(event));
    const to = place(event.clientX - canvas.getBoundingClientRect().left);
    drag.range = [Math.min(drag.from, to), Math.max(drag.from, to)];
    draw();
  };
  const ended = (event) => {
    if (!drag) return;
    const range = drag.range;
    drag = null;
    if (range[1] - range[0] > 0.002) choose(range);
    else if (under(event) >= 0) send({ type: "pick", box: under(event) });
    else clear();
  };
  const clear = () => send({ type: "unbrush" });
  function choose([begin, end]) {
    choice = { ...choice, brush: [begin, end] };
    send({ type: "brush", begin, end });
    draw();
  }
  // The range from one box to another, by keyboard.
  function extend(along) {
    if (at < 0) return;
    const from = anchor < 0 ? at : anchor;
    point(step(along, 0));
    anchor = from;
    choose([Math.min(found.begin[from], found.begin[at]), Math.max(found.end[from], found.end[at])]);
  }
  const turned = (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    const here = place(event.clientX - canvas.getBoundingClientRect().left), by = event.deltaY > 0 ? WHEEL : 1 / WHEEL;
    zoom(here - here * by, here + (1 - here) * by);
  };
  // The next box of a lane, or the nearest one of another lane.
  function step(along, lanes) {
    if (at < 0) return found.begin.length ? 0 : -1;
    const lane = found.lane[at] + lanes, here = found.begin[at];
    let best = -1;
    for (let i = 0; i < found.begin.length; i += 1) {
      if (found.lane[i] !== lane || i === at) continue;
      const away = found.begin[i] - here;
      if (along && Math.sign(away || i - at) !== along) continue;
      if (best < 0 || Math.abs(away) < Math.abs(found.begin[best] - here)) best = i;
    }
    return best < 0 ? at : best;
  }
  const KEYS = {
    ArrowRight: () => point(step(1, 0)), ArrowLeft: () => point(step(-1, 0)),
    ArrowDown: () => point(step(0, 1)), ArrowUp: () => point(step(0, -1)),
    "+": () => zoom(0.1, 0.9), "=": () => zoom(0.1, 0.9), "-": () => zoom(-0.125, 1.125),
    ".": () => zoom(PAN, 1 + PAN), ",": () => zoom(-PAN, 1 - PAN), Home: () => send({ type: "whole" }),
    Enter: () => { if (at >= 0) send({ type: "pick", box: at }); },
    Escape: () => { point(-1); clear(); },
  };
  const RANGES = { ArrowRight: () => extend(1), ArrowLeft: () => extend(-1) };
  const pressed = (event) => {
    const act = (event.shiftKey && RANGES[event.key]) || KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab's own keys
    act();
    if (at >= 0 && event.key.startsWith("Arrow")) write(status, said(at));
  };
  const left = () => { if (!drag) point(-1); };
  const listeners = {
    pointerdown: started, pointermove: moved, pointerup: ended, pointerleave: left, keydown: pressed,
    dblclick: () => send({ type: "whole" }),
  };
  for (const [name, listener] of Object.entries(listeners)) canvas.addEventListener(name, listener);
  canvas.addEventListener("wheel", turned, { passive: false });
  whole.addEventListener("click", () => send({ type: "whole" }));
  none.addEventListener("click", clear);

  function showKey() {
    const { axis = "", marks = [], key: order = [...marks.keys()], late = [], skew } = now;
    const shown = order.map((place) => marks[place]);
    if (found.waiting.length) shown.push(skew[0]);
    if (late.length) shown.push(skew[1]);
    const wanted = JSON.stringify([axis, shown]);
    if (wanted === keyed) return;
    keyed = wanted;
    const how = element("details", "how"), rules = element("summary", "", "?");
    rules.title = "How to read it";
    how.append(rules, `${axis}.`);
    key.replaceChildren(...shown.flatMap(([name, letter, color, ink]) => {
      const made = element("span", "key", letter);
      Object.assign(made.style, { background: color, color: ink });
      const named = element("span", "named");
      named.append(made, name === letter ? "" : name);
      return [named, " "];
    }), how);
    how.hidden = !axis;
  }

  function show(changed) {
    now = model.get("timeline");
    choice = model.get("brushed");
    if (!changed || changed.has("timeline")) {
      found = columns();
      at = anchor = -1;
      tip.hidden = true;
    }
    write(title, now.title || "");
    write(verdict, now.verdict || "");
    verdict.hidden = !now.verdict;
    showKey();
    write(status, choice.status || "");
    whole.disabled = !now.zoomed;
    none.disabled = !choice.status;
    put(canvas, "aria-label", `${now.title}. Arrow keys go from box to box, with Shift they select a range, plus and minus zoom, `
      + "comma and full stop move, Enter selects, Escape clears, Home shows all.");
    draw();
  }
  const anew = () => { measure(); draw(); };
  const sized = new ResizeObserver(() => { if (canvas.clientWidth !== width) anew(); });
  const themed = new MutationObserver(anew), scheme = matchMedia("(prefers-color-scheme: dark)");
  sized.observe(canvas);
  for (const root of [document.documentElement, document.body]) themed.observe(root, { attributes: true });
  scheme.addEventListener("change", anew);
  show();
  function end() {
    for (const observer of [sized, themed]) observer.disconnect();
    scheme.removeEventListener("change", anew);
  }
  return { names: ["timeline", "brushed"], show, end };
}
