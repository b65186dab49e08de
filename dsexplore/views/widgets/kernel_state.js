// What the kernel does with a widget's choices, said above the widget. The kernel answers each message with "busy" and
// then "idle"; what comes between them is the answer. One that takes longer than LATE is said to be busy, and of one that
// has ended (JupyterLab's kernel says so) what was chosen and not answered is taken back: the parts of the widget then
// agree with one another again.
const LATE = 1000; // milliseconds
const ENDED = ["dead", "terminating", "restarting", "autorestarting"];
const BUSY = "The kernel is busy: your choice is not shown below yet. It will be when the kernel comes to it.";
const GONE = "The kernel that answered here has ended: nothing below follows a choice any more. Run the cell again.";

export function watchKernel(model, el) {
  const line = document.createElement("div"), before = new Map();
  line.className = "dsx-state";
  line.setAttribute("role", "alert");
  el.append(line);
  const kernel = () => (model.widget_manager || {}).kernel;
  let waiting = 0, late = 0, gone = false, heard = Boolean(kernel());

  function say(text) {
    if (line.textContent === text) return;
    line.textContent = text;
    el.classList.toggle("dsx-late", Boolean(text));
    for (const part of el.querySelectorAll("[data-follows]")) part.setAttribute("aria-busy", Boolean(text) && !gone);
  }
  function answered() {
    waiting = Math.max(0, waiting - 1);
    if (waiting) return;
    clearTimeout(late);
    before.clear();
    if (!gone) say("");
  }
  function end() {
    if (gone) return;
    gone = true;
    clearTimeout(late);
    for (const [name, value] of before) model.set(name, value);
    before.clear();
    el.classList.add("dsx-gone");
    say(GONE);
    disable();
  }
  function disable() {
    if (gone) for (const control of el.querySelectorAll("[data-asks]")) control.disabled = true;
  }
  // Whether a message may be sent; false once nobody answers.
  function ask() {
    const now = kernel();
    if (model.widget_manager && heard && (!now || now.isDisposed || ENDED.includes(now.status))) end();
    if (gone) return false;
    waiting += 1;
    clearTimeout(late);
    // A page whose messages were never answered is one where answers are not seen, and says nothing of them.
    late = setTimeout(() => { if (heard && waiting) say(BUSY); }, LATE);
    return true;
  }
  function listened(callbacks) {
    const status = (message) => {
      heard = true;
      if (callbacks && callbacks.iopub && callbacks.iopub.status) callbacks.iopub.status(message);
      if (message.content.execution_state === "idle") answered();
    };
    return { ...callbacks, iopub: { ...(callbacks || {}).iopub, status } };
  }
  const followed = kernel();
  const changed = () => { if (followed.isDisposed || ENDED.includes(followed.status)) end(); };
  for (const signal of ["statusChanged", "disposed"]) if (followed && followed[signal]) followed[signal].connect(changed);
  return {
    model: {
      get: (name) => model.get(name),
      set(name, value) {
        if (gone) return;
        if (!before.has(name)) before.set(name, model.get(name));
        model.set(name, value);
      },
      on: (name, listener) => model.on(name, listener),
      off: (name, listener) => model.off(name, listener),
      save_changes(callbacks) { if (ask()) model.save_changes(listened(callbacks)); },
      send(content, callbacks) { if (ask()) model.send(content, listened(callbacks)); },
    },
    part: {
      names: [], show: disable,
      end() {
        clearTimeout(late);
        for (const signal of ["statusChanged", "disposed"]) if (followed && followed[signal]) followed[signal].disconnect(changed);
      },
    },
  };
}
