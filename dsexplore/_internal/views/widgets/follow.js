// Parts of a page that follow a widget's model. A part has `names`, the traits it follows, `show(changed)`, called with
// those that changed, and `end()`. All changes of one message are shown together, part by part in their order.
export function follow(model, parts) {
  const changed = new Set(), names = new Set(parts.flatMap((part) => part.names));
  function show() {
    const now = new Set(changed);
    changed.clear();
    for (const part of parts) if (part.names.some((name) => now.has(name))) part.show(now);
  }
  const followed = [...names].map((name) => [`change:${name}`, () => {
    if (!changed.size) queueMicrotask(show);
    changed.add(name);
  }]);
  for (const [name, note] of followed) model.on(name, note);
  return () => {
    for (const [name, note] of followed) model.off(name, note);
    for (const part of parts) part.end();
  };
}

// A part that is a widget of its own.
export const alone = (part) => ({ model: plain, el }) => {
  const { model, part: state } = watchKernel(plain, el);
  return follow(model, [part({ model, el }), state, ownKeys(el)]);
};
