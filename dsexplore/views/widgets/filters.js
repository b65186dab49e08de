// The explorer's filters: a list per facet, a module pattern, a check box. Names are data: they become text only.
export function bar({ model, el, clearTree }) {
  el.classList.add("dsx-filters");
  const lists = new Map();
  for (const [name, texts] of model.get("lists")) {
    const list = choice(name, texts.map((text, index) => [String(index), `${name}: ${text}`]));
    list.addEventListener("change", () => store("chosen", { ...model.get("chosen"), [name]: list.selectedIndex }));
    lists.set(name, list);
  }
  const sizes = choice("sizes", [["wire", "wire bytes"], ["message", "message bytes"]]);
  sizes.title = "wire bytes: the least that a rank must send; message bytes: the whole buffer of each collective";
  sizes.addEventListener("change", () => store("sizes", sizes.value));
  const pattern = element("input");
  pattern.placeholder = "module pattern: *.mlp";
  pattern.title = `only what such modules send, ${GRAMMAR}; then Enter`;
  pattern.setAttribute("aria-label", "module pattern");
  const match = () => store("pattern", pattern.value.trim());
  pattern.addEventListener("change", match);
  // JupyterLab takes Enter for itself, and then the browser sends no change event.
  pattern.addEventListener("keydown", (event) => { if (event.key === "Enter") match(); });
  const implicit = element("input"), label = element("label");
  implicit.type = "checkbox";
  implicit.addEventListener("change", () => store("implicit", implicit.checked));
  label.title = "only redistributes that the program did not ask for";
  label.append(implicit, "implicit only");
  const clear = element("button", "", "clear");
  clear.title = "clear all filters, the tree's too, and the selection";
  clear.addEventListener("click", () => {
    clearTree();
    model.send({ type: "clear" });
  });
  el.append(...lists.values(), pattern, label, sizes, clear);
  for (const control of [...lists.values(), pattern, implicit, sizes]) control.dataset.asks = "";
  function store(name, value) {
    if (model.get(name) === value) return;
    model.set(name, value);
    model.save_changes();
  }
  function show() {
    for (const [name, list] of lists) hold(list, "selectedIndex", model.get("chosen")[name] || 0);
    hold(pattern, "value", model.get("pattern"));
    hold(implicit, "checked", model.get("implicit"));
    hold(sizes, "value", model.get("sizes"));
  }
  show();
  return { names: ["chosen", "pattern", "implicit", "sizes"], show, end() {} };
}

// Sets what a control holds. Also where that is the same, the browser looks through all forms of the page, to fill them in.
export function hold(control, name, value) {
  if (control[name] !== value) control[name] = value;
}

// A list to choose one of [value, text] from.
function choice(name, options) {
  const list = element("select");
  list.setAttribute("aria-label", name);
  for (const [value, text] of options) {
    const option = element("option", "", text);
    option.value = value;
    list.append(option);
  }
  return list;
}
