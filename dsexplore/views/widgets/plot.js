// Draws a plotly figure with the plotly.js that is there already: the page's, JupyterLab's, or the installed package's.
const MIME = "application/vnd.plotly.v1+json";

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

// The pixels that the names on the y axis take. Plotly makes room by itself, but draws the figure twice for it.
function room(data, layout) {
  const pen = document.createElement("canvas").getContext("2d"), decode = document.createElement("textarea");
  pen.font = `${(layout.font || {}).size || 12}px "Open Sans", verdana, arial, sans-serif`;
  const names = data.flatMap((trace) => trace.y || []).filter((name) => typeof name === "string");
  return Math.ceil(Math.max(0, ...names.map((name) => {
    if (name.includes("&")) decode.innerHTML = name;
    return pen.measureText(name.includes("&") ? decode.value : name).width + 18;
  })));
}

export function plot({ model, el }) {
  const box = document.createElement("div");
  box.className = "dsx-plot";
  box.style.width = "100%";
  box.style.minHeight = "360px";
  box.style.contain = "layout paint style"; // what plotly measures inside lays out nothing outside
  box.setAttribute("role", "img");
  el.append(box);
  let plotly = null, bound = false, zoom = 0, width = 0;
  const send = (message) => model.send(message);
  function bind() {
    bound = true;
    box.on("plotly_click", ({ points }) => {
      const point = points[0];
      const index = Array.isArray(point.pointIndex) ? point.pointIndex : [point.pointIndex ?? point.pointNumber ?? 0];
      send({ type: "click", kind: (point.data.meta || {}).kind || "", customdata: point.customdata ?? null, x: point.x ?? null, index });
    });
    box.on("plotly_relayout", (change) => {
      const range = change["xaxis.range[0]"] !== undefined ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : change["xaxis.autorange"] ? null : undefined;
      if (range === undefined || !box.data.some((trace) => (trace.meta || {}).kind === "sequence")) return;
      clearTimeout(zoom);
      zoom = setTimeout(() => send({ type: "zoom", range }), 120);
    });
  }
  async function draw() {
    const { data, layout } = structuredClone(model.get("spec"));
    if (!data) return;
    plotly ??= await library(model);
    box.setAttribute("aria-label", model.get("spoken"));
    width ||= box.clientWidth;
    layout.margin = { ...layout.margin, l: Math.max((layout.margin || {}).l || 0, room(data, layout)) };
    await plotly.react(box, data, width ? { ...layout, width } : layout, { displaylogo: false, showSendToCloud: false });
    if (!bound) bind();
    box.dataset.drawn = String(Number(box.dataset.drawn || 0) + 1);
  }
  let drawing = Promise.resolve();
  const redraw = () => { drawing = drawing.then(draw).catch((error) => { box.textContent = `The figure could not be drawn: ${error}`; }); };
  model.on("change:spec", redraw);
  redraw();
  // Told by the browser when it lays out, where asking would have it lay out once more.
  const seen = new ResizeObserver(() => {
    if (!box.clientWidth || box.clientWidth === width) return;
    width = box.clientWidth;
    if (bound) drawing = drawing.then(() => plotly.relayout(box, { width }));
  });
  seen.observe(box);
  return () => { seen.disconnect(); model.off("change:spec", redraw); if (plotly) plotly.purge(box); };
}
