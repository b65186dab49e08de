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

function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "dsx-plot";
  box.style.width = "100%";
  box.style.minHeight = "360px";
  box.style.contain = "layout paint style"; // what plotly measures inside lays out nothing outside
  box.setAttribute("role", "img");
  el.append(box);
  let plotly = null, bound = false, zoom = 0;
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
    const spec = structuredClone(model.get("spec"));
    if (!spec.data) return;
    plotly ??= await library(model);
    box.setAttribute("aria-label", model.get("spoken"));
    await plotly.react(box, spec.data, { ...spec.layout, autosize: true }, { responsive: true, displaylogo: false, showSendToCloud: false });
    if (!bound) bind();
    box.dataset.drawn = String(Number(box.dataset.drawn || 0) + 1);
  }
  let drawing = Promise.resolve();
  const redraw = () => { drawing = drawing.then(draw).catch((error) => { box.textContent = `The figure could not be drawn: ${error}`; }); };
  model.on("change:spec", redraw);
  redraw();
  return () => { model.off("change:spec", redraw); if (plotly) plotly.purge(box); };
}

export default { render };
