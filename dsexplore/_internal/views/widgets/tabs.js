// Tabs below the tree, as the ARIA pattern has them: arrows, Home and End go from tab to tab, and show it. The kernel computes
// only the tab that is shown.
export function tabs({ model, el, panels }) {
  const list = element("div", "dsx-tabs"), given = model.get("tabs") || [], uid = `dsx-tab-${Math.random().toString(36).slice(2)}`;
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "views of what is selected");
  list.hidden = given.length < 2;
  const buttons = given.map(([name, title]) => {
    const button = element("button", "", title);
    button.setAttribute("role", "tab");
    button.id = `${uid}-${name}`;
    button.dataset.tab = name;
    button.dataset.asks = "";
    button.addEventListener("click", () => go(name));
    return button;
  });
  list.append(...buttons);
  list.addEventListener("keydown", (event) => {
    const here = buttons.findIndex((button) => button.dataset.tab === model.get("tab")), many = buttons.length;
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1 + many, Home: 0, End: many - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    buttons[to % many].focus();
    go(buttons[to % many].dataset.tab);
  });
  el.append(list);
  function go(name) {
    if (model.get("tab") !== name) {
      model.set("tab", name);
      model.save_changes();
    }
    show();
  }
  function show() {
    const now = model.get("tab");
    for (const button of buttons) {
      const on = button.dataset.tab === now;
      put(button, "aria-selected", on);
      button.tabIndex = on ? 0 : -1;
    }
    for (const [names, panel] of panels) {
      const on = names.includes(now);
      if (panel.hidden === on) panel.hidden = !on;
      if (!on || list.hidden) continue;
      put(panel, "role", "tabpanel");
      put(panel, "aria-labelledby", `${uid}-${now}`);
    }
  }
  show();
  return { names: ["tab"], show, end() {} };
}
