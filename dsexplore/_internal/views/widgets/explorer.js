// The explorer in a notebook: the page, with a figure, whose model asks the kernel.
export function explorer({ model: unwatched, el }) {
  const { model: plain, part: state } = watchKernel(unwatched, el), model = promptModel(plain);
  return follow(model, [...assemble({ model, store: plain, el, figure: plot }), state, ownKeys(el)]);
}

// JupyterLab's server leaves Nagle's algorithm on: it holds back a short reply until the browser has acknowledged the
// message before ("busy"), and a browser with nothing to send acknowledges up to 40 ms late. So this model sends a
// message when it sees "busy". Replies to a filter are long, and are not held back.
export function promptModel(model) {
  const status = ({ content }) => { if (content.execution_state === "busy") model.tell({ type: "waiting" }); };
  return {
    get: (name) => model.get(name),
    set: (name, value) => model.set(name, value),
    on: (name, listener) => model.on(name, listener),
    off: (name, listener) => model.off(name, listener),
    save_changes: () => model.save_changes({ iopub: { status } }),
    send: (content) => model.send(content, { iopub: { status } }),
  };
}
