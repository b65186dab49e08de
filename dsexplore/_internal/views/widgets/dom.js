// Elements of a page. Names are data: they reach the page as text nodes only.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function formatBytes(count) {
  let size = count, unit = 0;
  while (Math.abs(size) >= 1023.95 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(size) : size.toFixed(1).replace(/\.0$/, "")} ${UNITS[unit]}`;
}

// A sum of bytes as Python sends it: negative where sizes are missing in it, −0 where none is known.
export function formatSum(sum) {
  if (!(sum < 0) && !Object.is(sum, -0)) return formatBytes(sum);
  return sum ? `≥ ${formatBytes(-sum)}` : "size unknown";
}

export function formatSeconds(given) {
  const size = Math.abs(given);
  if (size === 0) return "0 s";
  const written = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 20 });
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (size >= 0.9995 * scale) return `${written(given / scale)} ${unit}`;
  return `${written(given / 1e-9)} ns`;
}

function view(model, key, Type) { return typed(model.get(key), Type); }

// Bytes of a message as numbers; a copy only where they begin at no multiple of a number's size.
function typed(raw, Type) {
  if (!raw || !raw.byteLength) return new Type(0);
  const { buffer, byteOffset, byteLength } = raw;
  if (byteOffset % Type.BYTES_PER_ELEMENT) return new Type(buffer.slice(byteOffset, byteOffset + byteLength));
  return new Type(buffer, byteOffset, byteLength / Type.BYTES_PER_ELEMENT);
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

// An element's text. Its text node stays: the browser makes no new box for it, and only lays it out.
function write(target, text) {
  const only = target.firstChild;
  if (!text || !only || only.nodeType !== Node.TEXT_NODE || only.nextSibling) {
    if (target.textContent !== text) target.textContent = text;
  } else if (only.data !== text) only.data = text;
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
