// Draws a figure: a heatmap of few cells as a grid, any other with the plotly.js that is there already: the page's,
// JupyterLab's, or the installed package's.
const MIME = "application/vnd.plotly.v1+json";
// Safari has no idle callbacks.
const whenIdle = globalThis.requestIdleCallback ?? ((run) => setTimeout(run, 200));
const SETTINGS = { displaylogo: false, showSendToCloud: false };

async function fromLab() {
  const container = globalThis._JUPYTERLAB && globalThis._JUPYTERLAB["jupyterlab-plotly"];
  if (!container) return null;
  const { RenderedPlotly } = (await container.get("./mimeExtension"))();
  if (!RenderedPlotly.Plotly) {
    const renderer = new RenderedPlotly({ mimeType: MIME });
    await renderer.createGraph({ data: { [MIME]: { data: [], layout: {} } }, setData() {} });
    renderer.dispose();
  }
  return RenderedPlotly.Plotly;
}

function fromKernel(model) {
  return new Promise((done, fail) => {
    const receive = async (message, buffers) => {
      if (message.type !== "library") return;
      model.off("msg:custom", receive);
      try {
        const packed = new Blob([buffers[0]]).stream().pipeThrough(new DecompressionStream("gzip"));
        const script = document.createElement("script");
        script.textContent = `(function(){var define,module,exports;${await new Response(packed).text()}}).call(globalThis)`;
        document.head.append(script);
        script.remove();
        done(globalThis.Plotly);
      } catch (error) { fail(error); }
    };
    model.on("msg:custom", receive);
    model.send({ type: "library" });
  });
}

function library(model) {
  if (globalThis.Plotly) return Promise.resolve(globalThis.Plotly);
  globalThis.__dsxPlotly ??= fromLab().catch(() => null).then((found) => found || fromKernel(model));
  return globalThis.__dsxPlotly;
}

// Makes room for the names on the axes. Plotly can do so (automargin), but draws the figure once more for it, and lays
// out the page each time. Names that do not fit side by side are left to plotly, which tilts them.
function makeRoom(data, layout, width) {
  const pen = document.createElement("canvas").getContext("2d"), decode = document.createElement("textarea");
  pen.font = `${(layout.font || {}).size || 12}px "Open Sans", verdana, arial, sans-serif`;
  const names = (axis) => new Set(data.flatMap((trace) => trace[axis] || []).filter((name) => typeof name === "string"));
  const widest = (all) => Math.max(0, ...[...all].map((name) => {
    if (name.includes("&")) decode.innerHTML = name;
    return pen.measureText(name.includes("&") ? decode.value : name).width;
  }));
  const below = names("x"), beside = names("y"), margin = layout.margin = { ...layout.margin };
  if (beside.size) {
    margin.l = Math.max(margin.l ?? 0, Math.ceil(widest(beside)) + 18);
    for (const [key, axis] of Object.entries(layout)) if (key.startsWith("yaxis") && !axis.title) axis.automargin = false;
  }
  const fit = (width - (margin.l ?? 80) - (margin.r ?? 80)) / below.size > widest(below) + 8;
  if (below.size && fit && !layout.xaxis2 && !(layout.xaxis ||= {}).title) {
    margin.b = Math.max(margin.b ?? 80, 28);
    Object.assign(layout.xaxis, { automargin: false, tickangle: 0 });
  }
}

export function plot({ model, el }) {
  const box = document.createElement("div");
  box.className = "dsx-plot";
  box.tabIndex = 0;
  box.setAttribute("role", "application");
  box.setAttribute("aria-roledescription", "figure");
  const spoken = document.createElement("div");
  spoken.className = "dsx-spoken";
  spoken.setAttribute("role", "status");
  const scale = element("div", "dsx-scale"), sheet = element("div"), grid = heatGrid((row, column) => chooseMark(drawn()[0], [row, column]));
  box.append(grid.el, sheet);
  el.append(box, scale, spoken);
  let plotly = null, bound = false, gridded = null, zoom = 0, width = 0, ink = "", at = -1;
  const send = (message) => model.send(message);
  const choose = (trace, point, customdata, x) => send({
    type: "click", kind: (trace.meta || {}).kind || "", customdata: customdata ?? null, x: x ?? null, index: [point].flat(),
  });
  function chooseMark(trace, index) {
    const deep = Array.isArray(index), of = (values) => (deep ? ((values || [])[index[0]] || [])[index[1]] : (values || [])[index]);
    choose(trace, index, of(trace.customdata), (trace.x || [])[deep ? index[1] : index]);
  }
  // Plotly keeps numbers that came packed as typed arrays in _fullData.
  const drawn = () => (gridded ? [gridded] : sheet._fullData || sheet.data || []);
  function point(to) {
    const marks = marksOf(drawn());
    at = to < marks.length ? to : -1;
    spoken.textContent = at < 0 ? "" : markWords(marks[at], drawn());
    if (gridded) grid.point(at < 0 ? null : marks[at].point);
  }
  box.addEventListener("keydown", (event) => {
    if (!(bound || gridded) || event.target !== box || event.ctrlKey || event.metaKey || event.altKey) return;
    const marks = marksOf(drawn());
    if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) point(nextMark(marks, at, event.key));
    else if ((event.key === "Enter" || event.key === " ") && at >= 0) chooseMark(drawn()[marks[at].curve], marks[at].point);
    else if (event.key === "Escape" && at >= 0) point(-1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  box.addEventListener("blur", () => { if (at >= 0) point(-1); });
  function bind() {
    bound = true;
    sheet.on("plotly_click", ({ points }) => {
      // Of a Sankey diagram plotly hands over a link, or a node, which has the links that begin at it.
      const { data, trace, pointIndex, pointNumber, customdata, x, sourceLinks } = points[0];
      const index = sourceLinks ? trace.link.value.length + pointNumber : pointIndex ?? pointNumber ?? 0;
      choose(data ?? trace, index, customdata, x);
    });
    sheet.on("plotly_relayout", (change) => {
      const range = change["xaxis.range[0]"] !== undefined ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : change["xaxis.autorange"] ? null : undefined;
      if (range === undefined || !sheet.data.some((trace) => (trace.meta || {}).kind === "sequence")) return;
      clearTimeout(zoom);
      zoom = setTimeout(() => send({ type: "zoom", range }), 120);
    });
  }
  // Plotly draws a color bar anew with each figure, in a fifth of its time; this one changes only where its ends do.
  function drawScale(data, colors) {
    const map = data.find(({ type, colorbar = {}, colorscale }) => type === "heatmap" && colorbar.ticktext && !colorbar.title && Array.isArray(colorscale));
    const between = colors ?? (map ? map.colorscale.map(([, color]) => color) : []);
    const drawn = map ? JSON.stringify([between, map.zmax, map.colorbar.ticktext]) : "";
    if (map) map.showscale = false;
    if ((scale.dataset.drawn || "") === drawn) return;
    scale.dataset.drawn = drawn;
    scale.replaceChildren();
    if (!map) return;
    const ramp = element("div", "dsx-ramp"), at = (tick) => `${(100 * (tick - map.zmin)) / (map.zmax - map.zmin || 1)}%`;
    ramp.style.background = `linear-gradient(90deg,${between})`;
    map.colorbar.ticktext.forEach((text, i) => {
      const tick = element("span", "", text);
      tick.style.left = at(map.colorbar.tickvals[i]);
      ramp.append(tick);
    });
    scale.append(ramp);
  }
  async function figure() {
    const { data, layout } = structuredClone(model.get("spec"));
    width ||= box.clientWidth;
    ink ||= getComputedStyle(box).color;
    layout.font = { ...layout.font, ...(ink && { color: ink }) };
    drawScale(data);
    if (width) makeRoom(data, Object.assign(layout, { width }), width);
    // Given its settings again, plotly would lay out the page before it begins.
    await plotly.react(sheet, data, layout, bound ? undefined : SETTINGS);
    if (bound) return;
    bind();
    // Once more in idle time, so that the browser has compiled plotly's redrawing before the first choice.
    whenIdle(() => { if (box.isConnected && !gridded) after(figure); });
  }
  async function draw() {
    const { data } = model.get("spec");
    if (!data) return;
    const found = gridIn(data);
    if (!found) plotly ??= await library(model);
    box.setAttribute("aria-label", `${model.get("spoken")}. Arrow keys go from mark to mark, Enter chooses one.`);
    at = -1;
    spoken.textContent = "";
    gridded = found;
    grid.el.hidden = !found;
    sheet.hidden = Boolean(found);
    box.classList.toggle("dsx-gridded", Boolean(found));
    if (found) {
      drawScale([{ ...found }], [heatOf(0), heatOf(1)]);
      grid.show(found, width ||= box.clientWidth);
    } else await figure();
    box.dataset.drawn = String(Number(box.dataset.drawn || 0) + 1);
  }
  // Draws at once unless a drawing is under way: plotly reads sizes, for which the browser lays out the page first.
  let drawing = null;
  function after(draw) {
    const now = drawing ? drawing.then(draw) : draw();
    const drawn = now.catch((error) => { Object.assign(sheet, { textContent: `The figure could not be drawn: ${error}`, hidden: false }); })
      .then(() => { if (drawing === drawn) drawing = null; });
    drawing = drawn;
  }
  const show = () => after(draw);
  show();
  function fit() {
    const now = getComputedStyle(box).color;
    if (!box.clientWidth || (box.clientWidth === width && now === ink)) return;
    width = box.clientWidth;
    ink = now;
    if (gridded) grid.fit(width);
    else if (bound) after(async () => { await plotly.relayout(sheet, { width, "font.color": ink }); });
  }
  // Observers report a size after the layout; reading it at another time forces one more layout.
  const seen = new ResizeObserver(fit), themed = new MutationObserver(fit);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  seen.observe(box);
  for (const root of [document.documentElement, document.body]) themed.observe(root, { attributes: true });
  scheme.addEventListener("change", fit);
  function end() {
    for (const observer of [seen, themed]) observer.disconnect();
    scheme.removeEventListener("change", fit);
    if (plotly) plotly.purge(sheet);
  }
  // Loads plotly, of which some figures have no need: for half a second the browser does nothing else.
  const prepare = () => { if (!plotly && box.isConnected) library(model).catch(() => {}); };
  return { names: ["spec"], show, end, prepare };
}
