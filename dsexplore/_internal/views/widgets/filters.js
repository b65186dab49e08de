// The explorer's filters: a list per facet, and a check box. Names are data: they become text only.
export function bar({ model, el, cleared }) {
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
  const implicit = element("input"), label = element("label");
  implicit.type = "checkbox";
  implicit.addEventListener("change", () => store("implicit", implicit.checked));
  label.title = "only redistributes that the program did not ask for";
  label.append(implicit, "implicit only");
  const clear = element("button", "", "clear");
  clear.title = "clear all filters, the tree's too, and the selection";
  clear.addEventListener("click", () => {
    cleared();
    model.send({ type: "clear" });
  });
  el.append(...lists.values(), label, sizes, clear);
  for (const control of [...lists.values(), implicit, sizes, clear]) control.dataset.asks = "";
  function store(name, value) {
    if (model.get(name) === value) return;
    model.set(name, value);
    model.save_changes();
  }
  function show() {
    for (const [name, list] of lists) hold(list, "selectedIndex", model.get("chosen")[name] || 0);
    hold(implicit, "checked", model.get("implicit"));
    hold(sizes, "value", model.get("sizes"));
  }
  show();
  return { names: ["chosen", "implicit", "sizes"], show, end() {} };
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
