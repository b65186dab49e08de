"""Rules of pictures, as JavaScript that returns what breaks them: empty plots, labels on one another, faint marks, and
titles with two lines under them.

A browser draws labels where the style puts them, and a mark on what lies below it: neither is in the HTML.
"""

from __future__ import annotations

EMPTY = """() => [...document.querySelectorAll("svg.still")].filter((svg) => {
  const area = (drawn) => { const { width, height } = drawn.getBoundingClientRect(); return width * height; };
  const marks = [...svg.querySelectorAll("path:not(.grid),rect,circle")].reduce((sum, mark) => sum + area(mark), 0);
  return area(svg) && marks < area(svg) / 100;
}).map((svg) => `empty plot: ${svg.getAttribute("aria-label")}`)"""
"""Drawings whose marks cover less than a hundredth of their area."""

OVERLAP = """() => {
  const clipped = (box, element) => {
    let { left, top, right, bottom } = box;
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.clipPath !== "none" || style.visibility === "hidden" || style.opacity === "0") return null;
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const edge = at.getBoundingClientRect();
      left = Math.max(left, edge.left); right = Math.min(right, edge.right);
      top = Math.max(top, edge.top); bottom = Math.min(bottom, edge.bottom);
    }
    return right - left > 1 && bottom - top > 1 ? { left, top, right, bottom } : null;
  };
  const texts = document.createTreeWalker(document.querySelector("main") || document.body, NodeFilter.SHOW_TEXT);
  const range = new Range(), boxes = [];
  while (texts.nextNode()) {
    const node = texts.currentNode, text = node.data.trim();
    if (!text || node.parentElement.closest("style,script,option,title,[hidden]")) continue;
    range.selectNodeContents(node);
    for (const line of range.getClientRects()) {
      const box = line.width > 1 && clipped(line, node.parentElement);
      if (box) boxes.push({ ...box, text, node });
    }
  }
  boxes.sort((one, other) => one.top - other.top);
  const faults = new Set();
  boxes.forEach((one, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < one.bottom; j += 1) {
      const other = boxes[j];
      if (other.node === one.node) continue;
      const tall = Math.min(one.bottom, other.bottom) - other.top;
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const least = Math.min(one.bottom - one.top, other.bottom - other.top);
      if (wide > 2 && tall > 0.45 * least)
        faults.add(`labels overlap: ${one.text.slice(0, 30)} | ${other.text.slice(0, 30)}`);
    }
  });
  return [...faults].slice(0, 20);
}"""
"""Texts that lie on one another by more than two pixels and almost half a line."""

TWO_LINES = """() => [...document.querySelectorAll("thead>tr")].filter((titles) => {
  const lined = [titles, ...titles.children].filter((each) => each.checkVisibility()
    && getComputedStyle(each).borderBottomStyle !== "none" && parseFloat(getComputedStyle(each).borderBottomWidth));
  return new Set(lined.map((each) => Math.round(each.getBoundingClientRect().bottom))).size > 1;
}).map((titles) => `two lines under a title: ${titles.textContent.slice(0, 40)}`)"""
"""Titles of tables that stand below one another, each with a line."""

FAINT = """(least) => {
  const pixel = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = pixel.getContext("2d", { willReadFrequently: true });
  const painted = (...layers) => {
    pen.clearRect(0, 0, 1, 1);
    layers.forEach((color) => { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); });
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((value) => value / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0.05);
  const paper = matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#ffffff";
  const below = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    return [paper, ...layers];
  };
  const axes = ".thin>i,.level>i,.headline .bar>span,.key[class*=' a']";
  const marks = document.querySelectorAll(`${axes},.keys i,.skew svg path,.prediction .part`);
  const faults = new Set();
  for (const mark of marks) {
    const { width, height } = mark.getBoundingClientRect(), style = getComputedStyle(mark);
    const color = mark.localName === "path" ? style.fill : style.backgroundColor;
    if (width < 1 || height < 1 || color === "none" || /, 0(\\.[0-4]\\d*)?\\)$/.test(color)) continue;
    const under = below(mark.closest(".dsx") || document.body);
    const [one, other] = [light(painted(...under, color)), light(painted(...under))];
    const ratio = Math.max(one, other) / Math.min(one, other);
    if (ratio < least)
      faults.add(`faint mark: ${color}, ${ratio.toFixed(2)}:1 on the page`);
  }
  return [...faults];
}"""
"""Marks of axes, of waiting, transfer and lateness, and of a step's parts with a contrast below the least one.

Phases and ops are left out: `tests/views/page/test_theme.py` asks less of them, since letters and lanes tell them too.
"""
