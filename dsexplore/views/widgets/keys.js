// Keys without a modifier belong to the widget that has the focus: JupyterLab would move from cell to cell with arrows.
export function keepKeys(el) {
  function keep(event) {
    if (!el.contains(event.target)) return;
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", plain);
  }
  window.addEventListener("keydown", keep, true);
  return { names: [], show() {}, end() { window.removeEventListener("keydown", keep, true); } };
}
