// The marks of a plotly figure, which arrow keys go along and Enter chooses, as the mouse does with a click.
export function marksOf(data) {
  return data.flatMap((trace, curve) => {
    if (trace.type === "heatmap") {
      return [...trace.z].flatMap((row, r) => [...row].flatMap((z, c) => (z === null || Number.isNaN(z) ? [] : [{ curve, point: [r, c] }])));
    }
    // Of a Sankey diagram the links, then the nodes.
    if (trace.type === "sankey") return [...trace.link.value, ...trace.node.label].map((_, point) => ({ curve, point }));
    const drawn = (trace.type === "bar" && trace.orientation !== "h" ? trace.y : trace.x) || [];
    return [...drawn].flatMap((value, point) => (value === null || (trace.type === "bar" && !value) ? [] : [{ curve, point }]));
  });
}

// The mark that an arrow key leads to: along a row or a column of a heatmap, else the one after or before.
export function nextMark(marks, at, key) {
  if (key === "Home" || at < 0) return marks.length ? 0 : -1;
  if (key === "End") return marks.length - 1;
  const back = key === "ArrowLeft" || key === "ArrowUp", step = back ? -1 : 1, here = marks[at];
  if (key === "ArrowLeft" || key === "ArrowRight" || !Array.isArray(here.point)) {
    return Math.min(marks.length - 1, Math.max(0, at + step));
  }
  const [row, column] = here.point, away = ({ curve, point: [r, c] }) => Math.abs(curve - here.curve) * 1e6 + Math.abs(r - row) * 1e3 + Math.abs(c - column);
  let best = at;
  marks.forEach((mark, i) => {
    if (!Array.isArray(mark.point)) return;
    const [r] = mark.point, below = mark.curve === here.curve ? (r - row) * step > 0 : (mark.curve - here.curve) * step > 0;
    if (below && (best === at || away(mark) < away(marks[best]))) best = i;
  });
  return best;
}

// What a mark is, in the words that hovering over it shows.
export function markWords({ curve, point }, data) {
  const trace = data[curve], pick = (values) => (Array.isArray(point) ? ((values || [])[point[0]] || [])[point[1]] : (values || [])[point]);
  if (trace.type === "sankey") {
    const { source, target, label, value } = trace.link, names = trace.node.label, many = value.length;
    if (point >= many) return plainText(`${names[point - many]}: all of it`);
    return plainText(`${names[source[point]]} ${names[target[point]]}: ${(label || value)[point]}`);
  }
  const place = Array.isArray(point) ? [(trace.y || [])[point[0]], (trace.x || [])[point[1]]] : [(trace.x || [])[point], (trace.y || [])[point]];
  const own = pick(trace.hovertext), text = pick(trace.text);
  if (Array.isArray(point)) return plainText(own || [place[0], text || `${place[1]}, ${pick(trace.z)}`].filter(Boolean).join(": "));
  return plainText([trace.name, own || text, ...(trace.orientation === "h" && own ? [] : place)].filter((part) => part !== undefined && part !== "").join(", "));
}

// Plotly's text is its own kind of HTML: line breaks and entities become what they stand for.
function plainText(text) {
  if (!/[&<]/.test(text)) return String(text);
  const decode = document.createElement("textarea");
  decode.innerHTML = String(text).replace(/<br\s*\/?>/g, ", ").replace(/<\/?[bi]>/g, "");
  return decode.value;
}
