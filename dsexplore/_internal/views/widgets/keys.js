// Keys without a modifier belong to the widget that has the focus: JupyterLab would move from cell to cell with arrows. A
// timeline has Shift too, with which it selects a range.
export function ownKeys(el) {
  function keep(event) {
    if (!el.contains(event.target)) return;
    const shift = event.shiftKey && event.target.getAttribute("role") !== "application";
    event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey && !event.altKey && !shift);
  }
  window.addEventListener("keydown", keep, true);
  return { names: [], show() {}, end() { window.removeEventListener("keydown", keep, true); } };
}
