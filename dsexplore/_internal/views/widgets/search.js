// The search box, above everything: it narrows the tree while one types, offers names that the kernel finds, and selects.
export function search({ model, store, el, modules }) {
  const box = element("input", "dsx-search"), list = element("ul", "dsx-found"), count = element("span", "dsx-spoken-only");
  const asks = Array.isArray(model.get("hits"));
  const uid = `dsx-found-${Math.random().toString(36).slice(2)}`;
  let at = -1, asked = false;
  el.classList.add("dsx-searching");
  box.placeholder = asks ? "search: module, parameter, op, axis, line" : "search modules: *.mlp";
  box.title = asks ? `names that contain what is typed, or a pattern of modules, ${GRAMMAR}; key /` : `modules, ${GRAMMAR}; then Enter`;
  for (const [name, value] of Object.entries({ role: "combobox", "aria-label": "search", "aria-expanded": false, "aria-controls": uid,
    "aria-autocomplete": "list", autocomplete: "off", spellcheck: false })) box.setAttribute(name, value);
  list.id = uid;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "found");
  list.hidden = true;
  count.setAttribute("role", "status");
  el.append(box, list, count);

  const offered = () => (asks ? model.get("hits") : []);
  function open(shown) {
    list.hidden = !shown;
    put(box, "aria-expanded", shown);
    if (!shown) point(-1);
  }
  function point(place) {
    at = place;
    [...list.children].forEach((option, i) => put(option, "aria-selected", i === at));
    if (at < 0) box.removeAttribute("aria-activedescendant");
    else {
      box.setAttribute("aria-activedescendant", list.children[at].id);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  }
  function take([kind, , name]) {
    box.value = "";
    modules.find("");
    open(false);
    model.send({ type: "found", kind, name });
  }
  function ask() {
    open(false);
    const text = box.value.trim();
    if (!asks || !text) {
      if (store.get("pattern") === text) return;
      store.set("pattern", text);
      store.save_changes();
    } else {
      asked = true;
      model.send({ type: "search", text });
    }
  }
  box.addEventListener("input", () => {
    const text = box.value.trim();
    modules.find(text);
    if (asks && text) model.send({ type: "complete", text });
    else open(false);
  });
  box.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const many = list.hidden ? 0 : list.children.length, by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && many) point((at + by + many + (at < 0 && by < 0 ? 1 : 0)) % many);
    else if (event.key === "Enter") at >= 0 ? take(offered()[at]) : ask();
    else if (event.key === "Escape") {
      if (list.hidden) { box.value = ""; modules.find(""); }
      open(false);
    } else return;
    event.preventDefault();
  });
  box.addEventListener("change", () => { if (!box.value.trim()) ask(); });
  box.addEventListener("blur", () => setTimeout(() => open(false)));
  list.addEventListener("pointerdown", (event) => {
    const option = event.target.closest("[role=option]");
    event.preventDefault();
    if (option) take(offered()[[...list.children].indexOf(option)]);
  });
  // What is found for an earlier text is not shown once the box is empty or left.
  function offer() {
    const found = offered();
    list.replaceChildren(...found.map(([kind, text], i) => {
      const option = element("li");
      option.id = `${uid}-${i}`;
      option.setAttribute("role", "option");
      option.append(element("span", "dsx-kind", kind), element("bdi", "", text));
      return option;
    }));
    open(found.length > 0 && Boolean(box.value.trim()) && el.contains(document.activeElement));
    write(count, box.value.trim() ? `${found.length} found` : "");
  }
  const show = (changed) => {
    if (changed && changed.has("hits")) offer();
    if (!changed || changed.has("pattern")) hold(box, "value", store.get("pattern"));
    if (!asked || !changed || !changed.has("status")) return;
    // What was searched for stays in the box where it is a pattern that filters; what else it was is selected now.
    asked = false;
    hold(box, "value", store.get("pattern"));
    modules.find(box.value);
  };
  show();
  return { names: ["hits", "pattern", "status"], show, end() {}, focus: () => { box.focus(); box.select(); }, clear() { box.value = ""; open(false); } };
}
